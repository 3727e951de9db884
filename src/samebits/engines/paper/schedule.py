"""Schedules of the accelerator on paper: which of them keep a contract's bits, and the fastest.

One contract, several schedules, as on every device. A core that walks all leaves of a tile keeps
the order by itself, in any mode. Cores that share a tile keep it in the mode "ordered" only. So the
mode is chosen for each bucket of rows, by time, among the schedules that have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from samebits.contract import Chain, Split, Tree, parse_tree
from samebits.engines.leaves import leaves_of
from samebits.engines.paper.machine import machine, nanoseconds
from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey

#: Leaves that a weight's tree may have, and the shortest.
LEAVES, SHORTEST_LEAF = (1, 2, 4, 8, 16), 256
#: Keys that the model takes a sequence to have.
_KEYS = 8192


class PaperSchedule(Schedule, tag="paper", frozen=True, kw_only=True):
    """How the machine shares work.

    Attributes:
        mode: of the machine, "free" or "ordered".
        parts: cores that share a tile, each with a leaf of the tree (of attention: with as many
            leaves of a sequence as there are for each); 1: one core walks all leaves.
    """

    mode: str = "free"
    parts: int = 1


def refusal(schedule: PaperSchedule) -> str | None:
    """Why a schedule does not keep a contract's bits; None if it does."""
    mode = machine().modes[schedule.mode]
    if schedule.parts == 1 or schedule.mode == "ordered":
        return None
    return f"in the mode {schedule.mode!r} partial results are added {mode.reduction}"


def tree_of(n: int, k: int) -> Tree:
    """The tree of a weight [n, k]: the fastest for one row, by cores that keep the order."""
    fits = [s for s in LEAVES if k // s >= SHORTEST_LEAF or s == 1]
    best = min(fits, key=lambda s: _product_ns(1, n, k, PaperSchedule(mode="ordered", parts=s)))
    return Split(best) if best > 1 else Chain()


@lru_cache(maxsize=4096)
def default(key: ScheduleKey, bucket: int) -> PaperSchedule:
    """The fastest schedule of a bucket that keeps the bits: a pure function of the key.

    Args:
        bucket: indexes BUCKETS; len(BUCKETS) is what lies beyond.
    """
    rows = BUCKETS[bucket] if bucket < len(BUCKETS) else 2 * BUCKETS[-1]
    kept = (s for s in candidates(key, bucket) if refusal(s) is None)
    return min(kept, key=lambda s: modelled_ns(key, rows, s))


def candidates(key: ScheduleKey, bucket: int) -> tuple[PaperSchedule, ...]:
    """All schedules of a key, also those that do not keep the bits."""
    return tuple(_candidates(key))


def _candidates(key: ScheduleKey) -> Iterator[PaperSchedule]:
    shared = machine().cores
    if key.op == "linear":
        shared = leaves_of(parse_tree(key.tree), key.k or 1).count
    for mode in machine().modes:
        for parts in {1: None, shared: None}:
            yield PaperSchedule(mode=mode, parts=parts)


def modelled_ns(key: ScheduleKey, rows: int, schedule: PaperSchedule) -> float:
    """How long the machine takes for a number of rows, by its model."""
    if key.op == "linear":
        return _product_ns(rows, key.n or 1, key.k or 1, schedule)
    d, dv = key.head_dim or 128, key.value_dim or 128
    tiles = -(-rows // machine().tile[0])
    height = min(rows, machine().tile[0])
    read = 2.0 * _KEYS * (d + dv) * tiles
    return nanoseconds(
        height * _KEYS * (d + dv), read, tiles, 4.0 * height * dv, schedule.mode, schedule.parts
    )


def _product_ns(m: int, n: int, k: int, schedule: PaperSchedule) -> float:
    high, wide = machine().tile
    tiles = -(-m // high) * -(-n // wide)
    read = 2.0 * (n * k + m * k + m * n)
    partial = 4.0 * min(m, high) * wide
    products = min(m, high) * wide * k
    return nanoseconds(products, read, tiles, partial, schedule.mode, schedule.parts)
