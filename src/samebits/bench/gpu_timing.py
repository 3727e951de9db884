"""Times of GPU work, from replays of CUDA graphs over rotating buffers.

A graph holds many calls, one after another, each on the next of several sets of buffers that do not
fit into the L2 cache together: weights are read from memory, as in a model, and the host's launch
costs nothing. Contenders replay in turns, so that clocks and neighbours act on all of them alike;
the median of the rounds counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import torch

from samebits.engines.replay import Captured, Work

State = Callable[[], AbstractContextManager[object]]

#: Bytes that a rotation reads before it comes back to its first set: several times the L2.
ROTATION = 256 * 2**20
#: Seconds that one replay should last at least, so that its start and its end do not count.
SHORTEST = 1e-3
MOST_SETS, MOST_CALLS = 256, 1024


def sets_for(size: int) -> int:
    """How many sets of buffers of `size` bytes a rotation needs."""
    return max(1, min(MOST_SETS, -(-ROTATION // max(size, 1))))


@dataclass(frozen=True)
class Race:
    """Seconds of one call by contender, and why the others gave none."""

    seconds: dict[str, float]
    errors: dict[str, str]

    def ratio(self, ours: str, against: str) -> float | None:
        """How many times faster `ours` is than `against`."""
        if ours not in self.seconds or against not in self.seconds:
            return None
        return self.seconds[against] / self.seconds[ours]


def capture(work: Work, sets: int = 1) -> Captured:
    """`work` warmed up on every set and captured, with calls enough for a replay of `SHORTEST`."""
    for index in range(sets):
        work(index)
    torch.cuda.synchronize()
    few = Captured(work, sets, min(max(sets, 4), MOST_CALLS))
    few.seconds()
    calls = int(SHORTEST / few.seconds()) + 1
    if calls <= few.calls:
        return few
    return Captured(work, sets, min(-(-calls // sets) * sets, MOST_CALLS))


def race(
    contenders: Mapping[str, Work],
    *,
    sets: int = 1,
    states: Mapping[str, State] | None = None,
    rounds: int = 7,
) -> Race:
    """Median seconds of one call of every contender, measured in turns.

    Args:
        contenders: name -> one call on the i-th set of buffers, i < sets.
        sets: how many sets there are (`sets_for`).
        states: name -> context manager of the contender's capture; a replay does not need it.
        rounds: replays of each contender that count; one more before them does not.
    """
    captured: dict[str, Captured] = {}
    errors: dict[str, str] = {}
    for name, work in contenders.items():
        try:
            with (states or {}).get(name, nullcontext)():
                captured[name] = capture(work, sets)
        except Exception as error:  # noqa: PERF203
            errors[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    found: dict[str, list[float]] = {name: [] for name in captured}
    for turn in range(rounds + 1):
        for name, graph in captured.items():
            seconds = graph.seconds()
            if turn:
                found[name].append(seconds)
    return Race({name: median(times) for name, times in found.items()}, errors)


@dataclass(frozen=True)
class Ceilings:
    """What this GPU reached in this process: bytes moved and floating-point operations a second.

    Attributes:
        moved: how the bytes were, in words.
    """

    bandwidth: float
    flops: float
    moved: str = "copied"


@lru_cache(maxsize=1)
def ceilings() -> Ceilings:
    """2 GiB read and 2 GiB written by a kernel; cuBLAS's bf16 product of 8192 x 8192 x 8192."""
    source = torch.empty(2**30, dtype=torch.int16, device="cuda").random_()
    target = torch.empty_like(source)
    # A captured copy_ becomes a copy node, which runs at two thirds of what a kernel reaches.
    copy = race({"copy": lambda _: torch.neg(source, out=target)}, rounds=5).seconds["copy"]
    n = 8192
    a, b = (torch.randn(n, n, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    product = race({"mm": lambda _: torch.mm(a, b, out=out)}, rounds=5).seconds["mm"]
    return Ceilings(4 * 2**30 / copy, 2 * n**3 / product)
