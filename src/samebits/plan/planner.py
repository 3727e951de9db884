"""Which schedule runs: a pure look-up by contract key and M bucket. Bits do not depend on it.

A family registers an analytical default, a pure function of the key and a bucket's largest M. A
loaded plan's table comes first. Nothing here looks at timing, environment or history.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from samebits.contract import ContractKey
from samebits.engines.schedule import Schedule

#: The largest M of each bucket; the last bucket has no end.
BUCKETS: tuple[int, ...] = (
    1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192,
)  # fmt: skip

#: op -> default schedule for (key, bucket): bucket indexes BUCKETS, len(BUCKETS) is the open end.
DEFAULTS: dict[str, Callable[[ContractKey, int], Schedule]] = {}


@dataclass(frozen=True)
class Row:
    """The schedules of one contract key, one a bucket of M."""

    key: ContractKey
    schedules: tuple[Schedule, ...]

    def at(self, m: int) -> Schedule:
        """The schedule for m rows."""
        return self.schedules[bisect_left(BUCKETS, m)]


@lru_cache(maxsize=4096)
def row_for(key: ContractKey) -> Row:
    """The schedules of `key`: from the plan in force, else the family's default."""
    default = DEFAULTS[key.op]
    return Row(key, tuple(default(key, bucket) for bucket in range(len(BUCKETS) + 1)))
