"""Timing of stock torch against the switch, in turns and in one run, so that noise hits both."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import median

from samebits.mode import deterministic, stock

Switch = Callable[[], AbstractContextManager[object]]


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
    before, after = [], []
    for _ in range(rounds + 1):
        with stock():
            before.append(_block(fn, calls))
        with switch():
            after.append(_block(ours, calls))
    return median(before[1:]), median(after[1:])


def _block(fn: Callable[[], object], calls: int) -> float:
    """Seconds of one call, from a block of them; before short ones another call warms caches."""
    if calls > 1:
        fn()
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    return (time.perf_counter() - start) / calls
