"""What every bench on a GPU needs: random numbers, times from graph replays, a look at bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from samebits.engines.replay import Captured, Work
from samebits.plan.tune.search import Timer, Unsuitable

__all__ = [
    "DTYPES", "ROTATION", "Pools", "Work", "attempt", "cancelling", "describe_difference",
    "doubled", "timer_of", "words",
]  # fmt: skip

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
#: Bytes of weights that a replay reads before it comes back to the first: several times the L2.
ROTATION = 160 * 2**20
#: Replays shorter than this (microseconds) take more calls; longer calls come alone.
SHORTEST, MOST_CALLS = 150.0, 48
#: A rough time of a product, to choose the number of calls: bytes and operations a microsecond.
BYTES_PER_US, OPERATIONS_PER_US, LATENCY_US = 4.2e6, 6e8, 4.0


class Pools:
    """Random numbers that all keys share: operands are views of them, nothing is filled anew."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._numbers = torch.empty(0, dtype=dtype, device=device)
        self._generator = torch.Generator(device).manual_seed(1)

    @cached_property
    def graphs(self) -> Any:
        """Memory that all captured graphs share, for none of them run at the same time."""
        handle = torch.cuda.graph_pool_handle()
        one = torch.zeros(1, device=self.device) + 1
        self._anchor = Captured(lambda _: one.add_(1), 1, 1, handle)  # a pool of no graph is gone
        return handle

    def numbers(self, count: int) -> torch.Tensor:
        """At least `count` numbers: normal, with exponents spread over 2^+-4."""
        if len(self._numbers) < count:
            made = torch.empty(count, dtype=self.dtype, device=self.device)
            for start in range(0, count, 1 << 26):
                part = made[start : start + (1 << 26)]
                normal = torch.randn(len(part), device=self.device, generator=self._generator)
                spread = torch.randint(
                    -4, 5, (len(part),), device=self.device, generator=self._generator
                )
                part.copy_(torch.ldexp(normal, spread))
            self._numbers = made
        return self._numbers


def attempt(work: Callable[[], object]) -> None:
    """Runs `work` once.

    Raises:
        Unsuitable: it failed. An error of the device itself ends the session instead.
    """
    try:
        work()
    except Unsuitable:
        raise
    except Exception as error:
        torch.cuda.synchronize()
        raise Unsuitable(f"{type(error).__name__}: {error}") from error


def timer_of(work: Work, sets: int, moved: int, operations: float, pools: Pools) -> Timer:
    """A warm timer of one call of `work(i)`, i < `sets`.

    Args:
        sets: of operands, which do not fit into the L2 together.
        moved, operations: bytes and operations of one call, about.
    """
    guess = LATENCY_US + max(moved / BYTES_PER_US, operations / OPERATIONS_PER_US)
    calls = min(MOST_CALLS, max(int(SHORTEST / guess), 1))
    if guess < SHORTEST:
        calls = max(calls, min(sets, MOST_CALLS))
    work(0)  # what a first call sets up cannot be captured
    captured = Captured(lambda call: work(call % sets), sets, calls, pools.graphs)
    captured.seconds()
    return lambda: captured.seconds() * 1e6


def words(x: torch.Tensor) -> torch.Tensor:
    """The bits of x as integers of its size."""
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32)


def cancelling(x: torch.Tensor) -> torch.Tensor:
    """x [rows, k] with its second half the negative of the first, but for a flipped last bit
    here and there.

    With a weight whose halves are equal the products cancel; what is left is of the size of the
    rounding errors, so that another tree shows in the result.
    """
    half = x.shape[1] // 2
    made = x.clone()
    made[:, half : 2 * half] = -x[:, :half]
    flipped = torch.randint_like(words(x[:, :half]), 64) == 0
    words(made)[:, half : 2 * half] ^= flipped.to(words(made).dtype)
    return made


def doubled(w: torch.Tensor) -> torch.Tensor:
    """w [..., n, k] with its second half equal to the first."""
    half = w.shape[-1] // 2
    made = w.clone()
    made[..., half : 2 * half] = w[..., :half]
    return made


def describe_difference(y: torch.Tensor, different: torch.Tensor, truth: torch.Tensor) -> str:
    """What differs, in words.

    Args:
        y: [m, n], the result that differs.
        different: [m, n] bool, where.
        truth: the evaluator's bits of the first element that differs.
    """
    row, column = different.nonzero()[0].tolist()
    got, wanted = (int(words(t).flatten()[0]) & 0xFFFFFFFF for t in (y[row, column:], truth))
    return (
        f"{int(different.sum())} of {y.numel()} elements differ at M = {len(y)}, the first at row "
        f"{row}, column {column}: {got:#x} is not {wanted:#x}"
    )
