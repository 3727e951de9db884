"""Which schedule runs: a pure look-up by schedule key and M bucket. Bits do not depend on it.

The plan in force comes first: the committed tables of the device class, or a plan that was loaded.
For what it does not know, a family of kernels has an analytical default, a pure function of the key
and a bucket. Nothing here looks at timing, environment or history.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from samebits.contract import ContractKey
from samebits.engines import family
from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.errors import PlanError
from samebits.plan import tables
from samebits.plan.document import Choice, Plan
from samebits.plan.families import default_at, general_at
from samebits.plan.keys import schedule_key
from samebits.plan.stack import this_device_class

__all__ = [
    "Row", "back_to_tables", "forget", "in_force", "loaded", "put_in_force", "row_for",
    "this_device_class",
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """The schedules of one key, one a bucket of M. Look it up anew after another plan is loaded.

    Attributes:
        schedules: the fastest.
        own: the fastest of this project's kernels, for operands that a vendor's do not take.
        general: kernels that take all operands.
    """

    key: ScheduleKey
    schedules: tuple[Schedule, ...]
    own: tuple[Schedule, ...]
    general: tuple[Schedule, ...]

    def at(self, m: int) -> Schedule:
        """The schedule for m rows."""
        return self.schedules[bisect_left(BUCKETS, m)]

    def own_at(self, m: int) -> Schedule:
        """The schedule of this project's kernels for m rows."""
        return self.own[bisect_left(BUCKETS, m)]

    def general_at(self, m: int) -> Schedule:
        """The schedule of a kernel that takes all operands, for m rows."""
        return self.general[bisect_left(BUCKETS, m)]


#: Loaded by the user, by device class; elsewhere the committed tables hold.
_loaded: dict[str, Plan] = {}


@lru_cache(maxsize=4096)
def row_for(
    key: ContractKey,
    n: int | None = None,
    k: int | None = None,
    group: int | None = None,
    experts: int | None = None,
) -> Row:
    """The schedules of an operation: from the plan in force, else the family's default.

    Args:
        key: what decides the operation's contract.
        n, k, group, experts: what schedules may know besides, see `keys.ScheduleKey`; n and k are
            the sizes of the weight at hand where it is a part of the key's.

    Raises:
        ContractError: no contract covers the key, or no kernels exist for it.
    """
    return _row(schedule_key(key, n, k, group, experts))


def _row(key: ScheduleKey) -> Row:
    tuned = _choices(key.device)
    general = tuple(general_at(key, bucket) for bucket in range(len(BUCKETS) + 1))
    if key in tuned:
        own = own_of(key, tuned[key])
        vendors = any(choice.schedule.library for choice in tuned[key])
        if vendors and not _same_library(key.device):
            return Row(key, own, own, general)
        return Row(key, tuple(choice.schedule for choice in tuned[key]), own, general)
    if key.dtype == key.out_dtype == "fp16":  # moves and multiplies as fast as bf16
        twin = msgspec.structs.replace(key, dtype="bf16", out_dtype="bf16")
        if twin in tuned:
            own = own_of(key, tuned[twin])
            return Row(key, own, own, general)
    defaults = tuple(default_at(key, bucket) for bucket in range(len(BUCKETS) + 1))
    return Row(key, defaults, defaults, general)


def own_of(key: ScheduleKey, choices: tuple[Choice, ...]) -> tuple[Schedule, ...]:
    """The fastest of this project's kernels in every bucket, of a key's choices."""
    return tuple(
        (choice.own or default_at(key, bucket)) if choice.schedule.library else choice.schedule
        for bucket, choice in enumerate(choices)
    )


@lru_cache(maxsize=16)
def _choices(device: str) -> dict[ScheduleKey, tuple[Choice, ...]]:
    return {entry.key: entry.choices for entry in in_force(device).entries if entry.choices}


def _same_library(device: str) -> bool:
    """Whether a vendor's algorithms mean here what they meant where the plan was made."""
    return in_force(device).stack.cublaslt == tables.cublaslt()


def in_force(device: str) -> Plan:
    """The plan that decides schedules on a device class."""
    return _loaded.get(device) or tables.committed(device)


def put_in_force(plan: Plan) -> None:
    """Makes `plan` decide on its device class, instead of the committed tables."""
    if not isinstance(plan, Plan):
        raise PlanError(f"{type(plan).__name__} is no plan")
    _loaded[plan.stack.device_class] = plan
    forget()


def back_to_tables() -> None:
    """Puts the committed tables in force again."""
    _loaded.clear()
    forget()


def loaded() -> dict[str, Plan]:
    """The plans that were put in force, by device class."""
    return dict(_loaded)


#: Called when another plan, or family of contracts, comes into force: whoever keeps rows lets go.
on_change: list[Callable[[], None]] = []


def forget() -> None:
    """Lets go of all rows, and of what was made ready from them."""
    row_for.cache_clear()
    _choices.cache_clear()
    for let_go in on_change:
        let_go()


family.on_change.append(forget)
