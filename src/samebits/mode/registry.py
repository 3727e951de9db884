"""The table of aten overrides. Modules in mode/aten fill it; mode/switch.py installs it.

A function is registered under the schema it implements and has exactly that schema's arguments in
functional form. ``.out`` and in-place overloads are derived from it at installation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Override:
    """One implementation of one aten schema at one dispatch key."""

    name: str
    key: str
    fn: Callable[..., Any]


OVERRIDES: dict[tuple[str, str], Override] = {}

#: Keys of a body that leaves the choice of the engine to the operations it calls.
DENSE = ("CPU", "CUDA")
#: The same above torch's autograd, for composites that are taken whole.
DENSE_AUTOGRAD = ("AutogradCPU", "AutogradCUDA")


def aten(*names: str, key: str | tuple[str, ...] = "CPU") -> Callable[[F], F]:
    """Registers a function for aten schemas, e.g. ``@aten("sum.dim_IntList")``.

    Args:
        names: schema names without the ``aten::`` prefix, with the overload.
        key: dispatch keys. ``CPU`` and ``CUDA`` keep torch's own autograd formula; a composite that
            is taken whole is registered at ``AutogradCPU`` or ``AutogradCUDA`` too and then brings
            its own backward.
    """
    keys = (key,) if isinstance(key, str) else key

    def register(fn: F) -> F:
        for name in names:
            for each in keys:
                if (name, each) in OVERRIDES:
                    raise ValueError(f"aten::{name} has two overrides at {each}")
                OVERRIDES[(name, each)] = Override(name, each, fn)
        return fn

    return register
