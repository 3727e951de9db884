"""Which schedule runs: a pure look-up by schedule key and M bucket. Bits do not depend on it.

The plan in force comes first. For what it does not know, a family of kernels has an analytical
default, a pure function of the key and a bucket. Nothing here looks at timing, environment or
history.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from samebits.contract import ContractKey
from samebits.engines.schedule import Schedule
from samebits.errors import ContractError
from samebits.plan.keys import BUCKETS, ScheduleKey, schedule_key

#: family -> module with ``default(key: ScheduleKey, bucket: int) -> Schedule``; bucket indexes
#: BUCKETS, len(BUCKETS) is the open end. The module is imported when the family is first used.
FAMILIES: dict[str, str] = {
    "linear": "samebits.engines.triton.linear.schedule",
    "grouped": "samebits.engines.triton.grouped.schedule",
    "attention": "samebits.engines.triton.attention.schedule",
}


@dataclass(frozen=True)
class Row:
    """The schedules of one key, one a bucket of M. Look it up anew after another plan is loaded."""

    key: ScheduleKey
    schedules: tuple[Schedule, ...]

    def at(self, m: int) -> Schedule:
        """The schedule for m rows."""
        return self.schedules[bisect_left(BUCKETS, m)]


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
    at_hand = schedule_key(key, n, k, group, experts)
    return Row(at_hand, tuple(default_at(at_hand, bucket) for bucket in range(len(BUCKETS) + 1)))


def default_at(key: ScheduleKey, bucket: int) -> Schedule:
    """The analytical default of a bucket.

    Raises:
        ContractError: no family of kernels takes the key.
    """
    if key.op not in FAMILIES:
        raise ContractError(f"{key.op} on {key.device} has no schedules: {sorted(FAMILIES)} have")
    schedule: Schedule = import_module(FAMILIES[key.op]).default(key, bucket)
    return schedule
