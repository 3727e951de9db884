"""Faults to order: bits flipped in results, and the engine's own (engines/cpu/csrc/path.hpp)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from samebits import bits, guard
from samebits.engines import cpu, watch
from samebits.engines.cpu import _cpu

#: As in path.hpp.
ENGINE_FAULTS = {
    name: number
    for number, name in enumerate(
        ("partial_bit", "partial_zero", "stale", "misplaced", "early", "dropped", "swapped",
         "lost_tile"), 1
    )
}  # fmt: skip


@contextmanager
def engine_fault(name: str) -> Iterator[None]:
    """The next call of the CPU engine whose path is checked has this fault."""
    _cpu.inject_fault(ENGINE_FAULTS[name])
    try:
        yield
    finally:
        _cpu.inject_fault(0)


@contextmanager
def events() -> Iterator[list[guard.Event]]:
    """The events of a block, and no memory of earlier ones."""
    guard.settle.forget()
    heard: list[guard.Event] = []
    leave = guard.subscribe(heard.append)
    try:
        yield heard
    finally:
        leave()
        guard.settle.forget()


def flip(x: torch.Tensor, at: int = 0, bit: int = 3) -> None:
    """Flips a bit of one element of `x`, whatever its strides, in place."""
    one = x[torch.unravel_index(torch.tensor(at), x.shape)].reshape(1).clone()
    one.view(bits.view(one).dtype).bitwise_xor_(1 << bit)
    x[torch.unravel_index(torch.tensor(at), x.shape)] = one[0]


def zero_tile(x: torch.Tensor) -> None:
    """Clears the first 16 x 16 elements of the last two axes."""
    x[..., :16, :16] = 0


@contextmanager
def broken(
    module: str, name: str, harm: Callable[[torch.Tensor], None], times: int = 1, isa: str = ""
) -> Iterator[None]:
    """A function of the CPU engine whose next results are harmed; turn the guard on inside.

    Args:
        times: so many results.
        isa: only those of this instruction set, if given.
    """
    key = f"samebits.engines.cpu.{module}", name
    fn, left = watch._offered[key], [times]

    @wraps(fn)
    def harmed(*args: Any, **options: Any) -> Any:
        result = fn(*args, **options)
        if left[0] > 0 and isa in ("", cpu.isa()):
            left[0] -= 1
            harm(result[0] if isinstance(result, tuple) else result)
        return result

    watch._offered[key] = harmed
    try:
        yield
    finally:
        watch._offered[key] = fn
        watch.remove()
