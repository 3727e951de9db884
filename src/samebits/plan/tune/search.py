"""The search for the fastest schedule of a bucket: check bits first, then race.

All of it is a function of what a `Bench` reports, so it is tested with a fake one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.errors import PlanError
from samebits.plan.document import Choice, Entry, Struck
from samebits.plan.keys import contract_at

#: Microseconds of one call, from one replay.
Timer = Callable[[], float]


class Unsuitable(Exception):
    """A schedule cannot run here: it does not fit the chip, or does not take the operands."""


class Bench(Protocol):
    """One key's operands on a device."""

    def candidates(self, bucket: int) -> Iterable[Schedule]:
        """Schedules worth trying, the most promising first."""

    def difference(self, schedule: Schedule, m: int) -> str | None:
        """How its bits differ from the contract's on m rows; None if they do not.

        Raises:
            Unsuitable: it cannot run.
        """

    def other_tree(self, schedule: Schedule, m: int) -> str | None:
        """How the tree of the kernel that runs differs from the contract's; see `plan.verify`."""

    def timer(self, schedule: Schedule, m: int) -> Timer:
        """A warm timer of the schedule on m rows. Raises as `difference`."""

    def stock(self, m: int) -> Timer | None:
        """A timer of PyTorch's own operation on m rows."""


@dataclass
class Effort:
    """How hard a search tries.

    Attributes:
        candidates: most schedules of a bucket that are timed.
        rounds: replays of each finalist.
        finalists: schedules that are timed more than once.
        margin: who is slower than the fastest by this factor after one replay is out.
    """

    candidates: int = 48
    rounds: int = 5
    finalists: int = 5
    margin: float = 1.15


@dataclass
class Seeds:
    """Winners of the latest keys by bucket: they are tried first elsewhere."""

    winners: dict[int, list[Schedule]] = field(default_factory=dict)
    most: int = 6

    def at(self, bucket: int) -> list[Schedule]:
        """What won lately in this bucket."""
        return self.winners.get(bucket, [])

    def add(self, bucket: int, schedule: Schedule) -> None:
        """`schedule` won in `bucket`."""
        recent = [s for s in self.winners.get(bucket, []) if s != schedule]
        self.winners[bucket] = [schedule, *recent][: self.most]


def search(
    bench: Bench,
    key: ScheduleKey,
    effort: Effort,
    seeds: Seeds,
    *,
    stock: bool = False,
    tell: Callable[[int], None] = lambda done: None,
) -> Entry:
    """The entry of a key: the fastest schedule of every bucket, at the bucket's largest M.

    The open end has the schedules of the last bucket. What differs from the contract is struck out.

    Args:
        stock: time PyTorch's own operation too.
        tell: called after each bucket with how many are done.

    Raises:
        PlanError: nothing runs, or nothing has the bits of the contract.
    """
    measured: list[dict[Schedule, float]] = []
    struck: list[Struck] = []
    stock_us: list[float] = []
    below: list[Schedule] = []
    for bucket, m in enumerate(BUCKETS):
        known = [*seeds.at(bucket), *below, *bench.candidates(bucket)]
        timers = admitted(bench, known, m, effort.candidates, struck)
        if not timers:
            raise PlanError(f"{key}: no schedule runs with the contract's bits at M = {m}")
        contender = bench.stock(m) if stock else None
        times, stock_time = race(timers, effort, contender)
        if stock_time is not None:
            stock_us.append(round(stock_time, 3))
        measured.append(times)
        below = [min(times, key=times.__getitem__)]
        tell(bucket + 1)
    choices = _choices(key, measured, {entry.schedule for entry in struck})
    for bucket, choice in enumerate(choices):
        seeds.add(bucket, choice.schedule)
    return Entry(
        key=key,
        contract=contract_at(key).text,
        choices=(*choices, choices[-1]),
        stock_us=tuple(stock_us),
        struck=tuple(struck),
    )


def _choices(
    key: ScheduleKey, measured: list[dict[Schedule, float]], struck: set[Schedule]
) -> list[Choice]:
    """What is wrong on some number of rows is not trusted on any other."""
    sound = [{s: us for s, us in times.items() if s not in struck} for times in measured]
    for m, times in zip(BUCKETS, sound, strict=True):
        if not times:
            raise PlanError(f"{key}: all that ran at M = {m} has other bits elsewhere")
    return [choice_of(times) for times in sound]


def admitted(
    bench: Bench, schedules: Iterable[Schedule], m: int, most: int, struck: list[Struck]
) -> dict[Schedule, Timer]:
    """Timers of the first `most` schedules that run on m rows with the contract's bits.

    What has other bits is added to `struck`, and not tried again on more rows.
    """
    timers: dict[Schedule, Timer] = {}
    out = {entry.schedule for entry in struck}
    for schedule in dict.fromkeys(schedules):
        if len(timers) == most:
            break
        if schedule in out:
            continue
        try:
            why = bench.difference(schedule, m)
            if why is None:
                timers[schedule] = bench.timer(schedule, m)
            else:
                struck.append(Struck(m=m, schedule=schedule, why=why))
        except Unsuitable:
            continue
    return timers


def race(
    timers: Mapping[Schedule, Timer], effort: Effort, stock: Timer | None = None
) -> tuple[dict[Schedule, float], float | None]:
    """Microseconds of every schedule, and of stock: medians of replays in turns.

    One replay of each decides who goes on; the times of the others are from that one.
    """
    times = {schedule: timer() for schedule, timer in timers.items()}
    limit = min(times.values()) * effort.margin
    finalists = sorted((s for s in times if times[s] <= limit), key=times.__getitem__)
    rounds: dict[Schedule, list[float]] = {s: [] for s in finalists[: effort.finalists]}
    stock_rounds = []
    for _ in range(effort.rounds):
        for schedule, found in rounds.items():
            found.append(timers[schedule]())
        if stock is not None:
            stock_rounds.append(stock())
    times |= {schedule: median(found) for schedule, found in rounds.items()}
    return times, median(stock_rounds) if stock_rounds else None


def choice_of(times: Mapping[Schedule, float]) -> Choice:
    """The choice of a bucket from the times of its schedules, in microseconds."""
    order = sorted(times, key=times.__getitem__)
    best, second = order[0], order[1] if len(order) > 1 else None
    own = next((s for s in order if not s.library), None) if best.library else None

    def us(schedule: Schedule | None) -> float | None:
        return None if schedule is None else round(times[schedule], 3)

    return Choice(
        schedule=best,
        us=us(best),
        runner_up=second,
        runner_up_us=us(second),
        own=own,
        own_us=us(own),
    )
