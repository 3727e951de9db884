"""Which family of contracts is in force in this process.

"device": every device class has its own, which are the fastest. "portable": one for all of them,
see `samebits.contract.portable`. "exact": the portable ones, but products, sums, norms, softmax
and attention by `samebits.contract.exact`. The switch puts a family in force; operations look it
up, and whoever keeps what he looked up forgets it when another one comes.
"""

from __future__ import annotations

from collections.abc import Callable

from samebits.errors import SettingError

#: What `put_in_force` takes.
FAMILIES = ("device", "portable", "exact")
#: Called when another family comes into force.
on_change: list[Callable[[], None]] = []

_name = FAMILIES[0]
_portable = False


def in_force() -> str:
    """The family in force, one of `FAMILIES`."""
    return _name


def portable() -> bool:
    """Whether the contracts that all devices share are in force, the exact ones or the others."""
    return _portable


def put_in_force(name: str) -> None:
    """Puts a family in force, in all threads.

    Raises:
        SettingError: it is none of `FAMILIES`.
    """
    global _name, _portable
    check(name)
    if name == _name:
        return
    _name, _portable = name, name != FAMILIES[0]
    for forget in on_change:
        forget()


def check(name: str) -> None:
    """Raises SettingError unless `name` is one of `FAMILIES`."""
    if name not in FAMILIES:
        raise SettingError(f"contract={name!r} is not understood: use one of {', '.join(FAMILIES)}")
