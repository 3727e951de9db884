"""Schedules of grouped matrix products: tile shape, operand order, warps, stages."""

from __future__ import annotations

from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey


class GroupedSchedule(Schedule, tag="triton.grouped", frozen=True, kw_only=True):
    """How a grouped product runs.

    Attributes:
        block_m: rows of x in a tile.
        block_n: rows of a weight in a tile (of gate and up together where they meet in one).
        block_k: elements of the reduction axis that are loaded at once.
        swap: the weight is the left operand of the tensor core, for tiles of fewer than 64 rows.
        group: row tiles that share a column of weight tiles before the next column's turn.
        num_warps, num_stages: of the program.
    """

    block_m: int
    block_n: int
    block_k: int
    swap: bool = False
    group: int = 8
    num_warps: int = 4
    num_stages: int = 4


def default(key: ScheduleKey, bucket: int) -> GroupedSchedule:
    """The schedule of a bucket of slots, from the rows that an expert gets on average.

    Few rows: the weight streams through the 64-wide side of the tensor core, 128 KB in flight on a
    multiprocessor. Many rows: tiles as in a dense product.
    """
    slots = BUCKETS[min(bucket, len(BUCKETS) - 1)]
    rows = -(-slots // (key.experts or 1))
    return _for_rows(key, rows)


def candidates(key: ScheduleKey, bucket: int) -> list[GroupedSchedule]:
    """Schedules worth timing for a bucket, the default first."""
    others = (
        _for_rows(key, rows, block_n, num_stages)
        for rows in (1, 16, 32, 64, 256)
        for block_n in (64, 128)
        for num_stages in (3, 4)
    )
    return list(dict.fromkeys([default(key, bucket), *others]))


def _for_rows(
    key: ScheduleKey, rows: int, block_n: int = 0, num_stages: int = 4
) -> GroupedSchedule:
    if key.dtype == "fp32":  # no tensor core: IEEE fma in registers
        return GroupedSchedule(block_m=16 if rows <= 16 else 32, block_n=64, block_k=32)
    size = 1 if key.dtype in ("e4m3", "e5m2") else 2
    scaled = key.scaling == "block"  # a leaf, and so a step, is 128 elements
    if rows <= 48:
        block_m = 16 if rows <= 12 else 32 if rows <= 24 else 64
        block_n = block_n or 64
        block_k = 128 if scaled or block_n > 64 or block_m > 16 else 512 // size
        return GroupedSchedule(
            block_m=block_m, block_n=block_n, block_k=block_k, swap=True, num_stages=num_stages
        )
    return GroupedSchedule(
        block_m=64 if rows <= 96 else 128, block_n=block_n or 128,
        block_k=128 if scaled else 128 // size, num_warps=8, num_stages=min(num_stages, 4),
    )  # fmt: skip
