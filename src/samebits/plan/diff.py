"""What changed between two plans: bits, or only speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.errors import PlanError
from samebits.plan.document import Entry, Plan

Kind = Literal["bits", "added", "removed", "speed"]


@dataclass(frozen=True)
class Change:
    """One key that differs.

    Attributes:
        kind: "bits": another contract; "added", "removed": in one plan only; "speed": the same
            contract, another schedule somewhere.
        buckets: (largest M or None for the open end, before, after) of schedules that differ.
        contracts: texts before and after, for "bits".
    """

    key: ScheduleKey
    kind: Kind
    buckets: tuple[tuple[int | None, Schedule, Schedule], ...] = ()
    contracts: tuple[str, str] | None = None


@dataclass(frozen=True)
class Difference:
    """All changes between two plans, and whether their stacks differ.

    Attributes:
        common: keys that both plans have, whatever their trees.
    """

    changes: tuple[Change, ...]
    stack: tuple[str, ...]
    common: int

    @property
    def bits(self) -> bool:
        """Whether a key that both plans have changes its bits."""
        return any(change.kind == "bits" for change in self.changes)


def diff(before: Plan, after: Plan) -> Difference:
    """What changed from one plan to another, key by key.

    A key holds its tree: a weight that has one tree in one plan and another in the other has other
    bits, and stands under its new key.

    Raises:
        PlanError: the plans are for two device classes.
    """
    classes = before.stack.device_class, after.stack.device_class
    if classes[0] != classes[1]:
        raise PlanError(f"a plan for {classes[0]} and one for {classes[1]} have no key in common")
    old = {entry.key: entry for entry in before.entries}
    new = {entry.key: entry for entry in after.entries}
    gone = {_without_tree(key): key for key in old if key not in new}
    changes: list[Change | None] = []
    for key, entry in new.items():
        earlier = old.get(key)
        if earlier is None and (moved := gone.pop(_without_tree(key), None)) is not None:
            earlier = old[moved]
        changes.append(Change(key, "added") if earlier is None else _change(earlier, entry))
    added = sum(change is not None and change.kind == "added" for change in changes)
    changes += [Change(key, "removed") for key in gone.values()]
    return Difference(
        tuple(change for change in changes if change is not None),
        tuple(before.stack.differences(after.stack)),
        common=len(new) - added,
    )


def _without_tree(key: ScheduleKey) -> ScheduleKey:
    return msgspec.structs.replace(key, tree="")


def _change(old: Entry, new: Entry) -> Change | None:
    if old.contract != new.contract:
        return Change(new.key, "bits", contracts=(old.contract, new.contract))
    places = zip((*BUCKETS, None), old.choices, new.choices, strict=False)
    buckets = tuple((m, a.schedule, b.schedule) for m, a, b in places if a.schedule != b.schedule)
    return Change(new.key, "speed", buckets) if buckets else None
