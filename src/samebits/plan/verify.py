"""Every schedule of a plan, computed on the device and compared with the contract.

Its bits are compared with the evaluator's, and its tree, probed on the kernel that runs
(`samebits.reveal`), with the contract's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.errors import PlanError, RevealError
from samebits.plan import stack
from samebits.plan.checkers import checkable, checker_of
from samebits.plan.document import Entry, Plan, Struck
from samebits.plan.tune.benches import benches, measurable
from samebits.plan.tune.search import Unsuitable


class Checker(Protocol):
    """One key's operands on a device."""

    def difference(self, schedule: Schedule, m: int) -> str | None:
        """See `tune.search.Bench`."""

    def other_tree(self, schedule: Schedule, m: int) -> str | None:
        """How the tree of the kernel that runs differs from the contract's.

        None if it does not, or if the operation's result does not show its tree.

        Raises:
            RevealError: what runs is no sum.
        """


@dataclass(frozen=True)
class Verdict:
    """What was found for one key.

    Attributes:
        compared: schedules that ran, each in every bucket it is named for; None where nothing makes
            operands for the key.
        struck: those with other bits than the contract, or with another tree.
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


#: Opens the operands of a key on the device, and frees them.
Opening = Callable[[ScheduleKey], AbstractContextManager[Checker]]


def verify(plan: Plan, open_bench: Opening | None = None) -> Iterator[Verdict]:
    """A verdict for every key of `plan` that has schedules.

    A bucket's schedules (the chosen one, the runner-up, our own) run at its largest number of rows
    and at the smallest, those of the open end at the largest of all buckets, on operands made to
    show another tree. All are compared with one reference
    result, of which the contract's evaluator computes a sample. The tree of each schedule is probed
    once, at the first of these numbers.

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
        open_bench = _opening(device)
    for entry in plan.entries:
        covered = given or measurable(entry.key) or checkable(entry.key)
        if entry.choices and not covered:
            yield Verdict(entry.key, None)
        elif entry.choices:
            with open_bench(entry.key) as bench:
                yield _verdict(bench, entry)


def _opening(device: str) -> Opening:
    """Opens a bench, or for families that are not tuned a checker, on this machine's GPU."""
    open_bench, where = benches(device), torch.device("cuda", stack.gpu_of(device) or 0)

    @contextmanager
    def opened(key: ScheduleKey) -> Iterator[Checker]:
        if measurable(key):
            with open_bench(key) as bench:
                yield bench
        else:
            with torch.cuda.device(where):
                yield checker_of(key, where)
                torch.cuda.synchronize()

    return opened


def _verdict(bench: Checker, entry: Entry) -> Verdict:
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
        if why is None and schedule not in compared:
            try:
                why = bench.other_tree(schedule, m)
            except RevealError as error:
                why = str(error)
        compared.add(schedule)
        if why is not None:
            struck[schedule] = Struck(m=m, schedule=schedule, why=why)
    return Verdict(entry.key, len(compared), tuple(struck.values()), tuple(unsuitable))


def _places(entry: Entry) -> Iterator[tuple[Schedule, int]]:
    """Every schedule with the numbers of rows at the edges of the buckets that name it."""
    found: dict[tuple[Schedule, int], None] = {}
    edges = zip((0, *BUCKETS), (*BUCKETS, BUCKETS[-1]), entry.choices, strict=True)
    for below, m, choice in edges:
        for schedule in (choice.schedule, choice.runner_up, choice.own):
            if schedule is not None:
                found |= dict.fromkeys((schedule, rows) for rows in (m, min(below + 1, m)))
    yield from found
