"""Every schedule of a plan, computed on the device and compared with the contract's evaluator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.errors import PlanError
from samebits.plan import stack
from samebits.plan.document import Entry, Plan, Struck
from samebits.plan.tune.benches import Open, benches, measurable
from samebits.plan.tune.search import Bench, Unsuitable


@dataclass(frozen=True)
class Verdict:
    """What was found for one key.

    Attributes:
        compared: schedules that ran, each in every bucket it is named for; None where nothing makes
            operands for the key.
        struck: those with other bits than the contract.
        unsuitable: those that do not run on this machine.
    """

    key: ScheduleKey
    compared: int | None
    struck: tuple[Struck, ...] = ()
    unsuitable: tuple[Schedule, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every schedule ran, with the contract's bits."""
        return not self.struck and not self.unsuitable


def verify(plan: Plan, open_bench: Open | None = None) -> Iterator[Verdict]:
    """A verdict for every key of `plan` that has schedules.

    A bucket's schedules (the chosen one, the runner-up, our own) run at its largest number of rows
    and at the smallest, on operands made to show another tree. All are compared with one reference
    result, of which the contract's evaluator computes a sample.

    Args:
        open_bench: operands on a device; this machine's GPU if None.

    Raises:
        PlanError: this machine has no device of the plan's class.
    """
    device = plan.stack.device_class
    given = open_bench is not None
    if open_bench is None:
        if device == "cpu":
            return
        if stack.gpu_of(device) is None:
            raise PlanError(
                f"schedules for {device} are compared on such a device, and this machine has none"
            )
        open_bench = benches(device)
    for entry in plan.entries:
        if entry.choices and not given and not measurable(entry.key):
            yield Verdict(entry.key, None)
        elif entry.choices:
            with open_bench(entry.key) as bench:
                yield _verdict(bench, entry)


def _verdict(bench: Bench, entry: Entry) -> Verdict:
    compared: set[Schedule] = set()
    struck: dict[Schedule, Struck] = {}
    unsuitable: dict[Schedule, None] = {}
    for schedule, m in _places(entry):
        if schedule in struck or schedule in unsuitable:
            continue
        try:
            why = bench.difference(schedule, m)
        except Unsuitable:
            unsuitable[schedule] = None
            continue
        compared.add(schedule)
        if why is not None:
            struck[schedule] = Struck(m=m, schedule=schedule, why=why)
    return Verdict(entry.key, len(compared), tuple(struck.values()), tuple(unsuitable))


def _places(entry: Entry) -> Iterator[tuple[Schedule, int]]:
    """Every schedule with the numbers of rows at the edges of the buckets that name it."""
    below = 0
    for m, choice in zip(BUCKETS, entry.choices, strict=False):
        for schedule in dict.fromkeys((choice.schedule, choice.runner_up, choice.own)):
            if schedule is not None:
                for rows in dict.fromkeys((m, below + 1)):
                    yield schedule, rows
        below = m
