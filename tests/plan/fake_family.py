"""A family of kernels that exists on paper, and a device on which it is measured without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.plan.tune import Unsuitable

SHAPES = [(4096, 4096), (1024, 4096), (576, 7168)]


class Own(Schedule, tag="test.own", frozen=True, kw_only=True):
    tile: int
    warps: int = 4


class Vendor(Schedule, tag="test.vendor", frozen=True, kw_only=True):
    library: ClassVar[str] = "cublaslt"

    algorithm: int


class Broken(Schedule, tag="test.broken", frozen=True, kw_only=True):
    """Other bits from `from_m` rows on."""

    from_m: int = 1


class Crooked(Schedule, tag="test.crooked", frozen=True, kw_only=True):
    """Another tree, which the operands do not show."""


class Absent(Schedule, tag="test.absent", frozen=True, kw_only=True):
    """Does not run on this device."""


def default(key: ScheduleKey, bucket: int) -> Own:
    return Own(tile=16 << min(bucket // 4, 3))


class FakeBench:
    """Times are a function of the schedule and m; `calls` records what was measured."""

    def __init__(
        self,
        times: Callable[[Schedule, int], float],
        schedules: list[Schedule],
        stock: float | None = 100.0,
    ) -> None:
        self.times, self.schedules, self.stock_us = times, schedules, stock
        self.compared: list[tuple[Schedule, int]] = []
        self.probed: list[tuple[Schedule, int]] = []
        self.timed: list[tuple[Schedule, int]] = []

    def candidates(self, bucket: int) -> list[Schedule]:
        return list(self.schedules)

    def difference(self, schedule: Schedule, m: int) -> str | None:
        self.compared.append((schedule, m))
        if isinstance(schedule, Absent):
            raise Unsuitable("no such instruction")
        wrong = isinstance(schedule, Broken) and m >= schedule.from_m
        return f"1 of {m} elements differs" if wrong else None

    def other_tree(self, schedule: Schedule, m: int) -> str | None:
        assert (schedule, m) in self.compared
        self.probed.append((schedule, m))
        return "a chain, where the contract is split(4)" if isinstance(schedule, Crooked) else None

    def timer(self, schedule: Schedule, m: int) -> Callable[[], float]:
        assert (schedule, m) in self.compared, "bits are compared before anything is timed"

        def once() -> float:
            self.timed.append((schedule, m))
            return self.times(schedule, m)

        return once

    def stock(self, m: int) -> Callable[[], float] | None:
        return None if self.stock_us is None else lambda: float(self.stock_us or 0)


class FakeDevice:
    """Opens one bench for every key."""

    def __init__(self, make: Callable[[ScheduleKey], FakeBench]) -> None:
        self.make = make
        self.opened: list[ScheduleKey] = []

    @contextmanager
    def __call__(self, key: ScheduleKey) -> Iterator[FakeBench]:
        self.opened.append(key)
        yield self.make(key)


__all__ = [
    "BUCKETS",
    "SHAPES",
    "Absent",
    "Broken",
    "Crooked",
    "FakeBench",
    "FakeDevice",
    "Own",
    "Vendor",
    "default",
]
