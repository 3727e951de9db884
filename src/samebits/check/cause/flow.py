"""Which operations a step of a run follows from: a difference that nothing takes up is no cause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from samebits.check.tape import Key, labelled, tensors

RETURNED: Key = ("", "return", 0)
"""The step of what a call returns."""


class Flow:
    """Who wrote the operands of each operation and module, by the addresses of their memory."""

    def __init__(self) -> None:
        self._writers: dict[int, Key] = {}
        self._sources: dict[Key, set[Key]] = {}
        self._numbers: set[Key] = set()

    def ran(self, key: Key, operands: Any, results: Any) -> None:
        """An operation has run. What follows from a number that it gives to Python is not seen."""
        found = self._sources.setdefault(key, set())
        found |= self._numbers
        found.update(self._of(operands))
        made = list(tensors(results))
        if not made:
            self._numbers.add(key)
        for t in made:
            self._writers[address(t)] = key

    def reached(self, key: Key, value: Any) -> None:
        """A module is given tensors, or has made them."""
        for label, t in labelled(value):
            each = (key[0], key[1] + label, key[2])
            self._sources.setdefault(each, set()).update(self._of(t))

    def _of(self, value: Any) -> set[Key]:
        found = (self._writers.get(address(t)) for t in tensors(value))
        return {key for key in found if key is not None}

    def before(self, steps: Iterable[Key], agreed: set[Key]) -> set[Key] | None:
        """The operations that steps follow from, over none that agreed; None: it was not seen.

        A step that holds no tensors may follow from every number that was given to Python.
        """
        found: set[Key] = set()
        due = [self._sources.get(step) or self._numbers for step in steps]
        if not all(due):
            return None
        while due:
            new = due.pop() - found - agreed
            found |= new
            due.extend(self._sources.get(key, set()) for key in new)
        return found


def made(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """What an operation has made: what it returned, and what it wrote to and did not return."""
    if not func._schema.is_mutable:
        return output
    returned = {id(t) for t in tensors(output)}
    named = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
    wrote = [
        t
        for a in func._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
        for t in tensors(named.get(a.name))
        if id(t) not in returned
    ]
    return (output, *wrote) if wrote else output


def address(t: torch.Tensor) -> int:
    """The address of a tensor's memory; 0 where it is not one piece (sparse tensors)."""
    return t.untyped_storage().data_ptr() if t.layout is torch.strided else 0
