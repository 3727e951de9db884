"""Where the engines can be watched: the functions that compute.

An engine offers its functions; an observer above may take their place, and gives it back. While
nobody watches, nothing here is on the way of a call. So callers reach these functions through their
module (``engine.linear``), never by a name of their own.

A launch that finds something wrong by itself (a reduction path that is not the contract's) reports
it here, and the observer of the call takes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from samebits.engines.cpu import _cpu

Compute = Callable[..., Any]
#: Module, name and function -> what takes its place.
Wrap = Callable[[str, str, Compute], Compute]

_offered: dict[tuple[str, str], Compute] = {}
_wrap: Wrap | None = None
_waiting: list[tuple[str, str]] = []
_placing = False


def offer(module: str, *functions: Compute) -> None:
    """Makes functions of `module` watchable; an observer that is there takes them at once.

    Their results are new tensors, or written to an argument ``out``; they change no other argument.
    """
    for fn in functions:
        _offered[module, fn.__name__] = fn
    _place([(module, fn.__name__) for fn in functions])


def install(wrap: Wrap) -> None:
    """Puts what `wrap` gives in the place of every offered function, of later ones too."""
    global _wrap
    _wrap = wrap
    _place(list(_offered))


def _place(names: list[tuple[str, str]]) -> None:
    """Lets the observer take functions. It may import modules that offer more of them: those wait
    until it has what it imports.
    """
    global _placing
    _waiting.extend(names)
    if _placing:
        return
    _placing = True
    try:
        while _waiting:
            module, name = _waiting.pop(0)
            if _wrap is not None:
                fn = _offered[module, name]
                setattr(sys.modules[module], name, _wrap(module, name, fn))
    finally:
        _placing = False
        _waiting.clear()


def remove() -> None:
    """Puts the functions themselves back."""
    global _wrap
    _wrap = None
    for (module, name), fn in _offered.items():
        setattr(sys.modules[module], name, fn)


def watched() -> bool:
    """Whether an observer is there. Calls must not then be replayed below it."""
    return _wrap is not None


def report(wrong: int) -> None:
    """A launch of this thread found that so many outputs took another path than the contract's."""
    _cpu.found_wrong(wrong)


def blind() -> None:
    """A launch of this thread cannot follow its path, such as that of a vendor's kernel."""
    _cpu.found_blind()
