"""Timing of stock torch against the switch, in turns and in one run, so that noise hits both."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

from samebits.mode import deterministic

Switch = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Row:
    """One line of a cost table.

    Attributes:
        area: what is measured, e.g. ``linear``; lines of one area stand together.
        name: the case, e.g. ``fp32 4096x4096 M=1``.
        stock: seconds of stock torch, median; None where there is nothing to compare with.
        ours: seconds with the switch on, median.
        target: the ratio that this line is meant to reach, or None.
    """

    area: str
    name: str
    stock: float | None
    ours: float
    target: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times faster than stock (above 1 is faster)."""
        return None if self.stock is None or not self.ours else self.stock / self.ours


def measure(
    fn: Callable[[], object],
    *,
    ours: Callable[[], object] | None = None,
    switch: Switch = deterministic,
    seconds: float = 0.4,
    rounds: int = 7,
) -> tuple[float, float]:
    """Median seconds of one call: stock, then with the switch on.

    Rounds alternate between the two, each round times a block of calls, and the first round of each
    is thrown away.

    Args:
        fn: what is timed. With `ours` given it is only timed on stock torch.
        ours: another function to time under the switch instead of `fn`.
        switch: the switch (a context manager factory).
        seconds: the time to spend, roughly.
        rounds: how many blocks each side gets.
    """
    ours = ours or fn
    start = time.perf_counter()
    fn()
    fn_seconds = max(time.perf_counter() - start, 1e-7)
    calls = max(1, math.floor(seconds / (2 * rounds) / fn_seconds))
    stock_times, our_times = [], []
    for _ in range(rounds + 1):
        stock_times.append(_block(fn, calls))
        with switch():
            our_times.append(_block(ours, calls))
    return median(stock_times[1:]), median(our_times[1:])


def compare(
    area: str,
    name: str,
    fn: Callable[[], object],
    *,
    ours: Callable[[], object] | None = None,
    target: float | None = None,
    seconds: float = 0.4,
) -> Row:
    """`measure` as a `Row`."""
    stock, with_switch = measure(fn, ours=ours, seconds=seconds)
    return Row(area, name, stock, with_switch, target)


def _block(fn: Callable[[], object], calls: int) -> float:
    """Seconds of one call, from a block of them; before short ones another call warms caches."""
    if calls > 1:
        fn()
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    return (time.perf_counter() - start) / calls
