"""Schedules of grouped matrix products: tile shape, operand order, warps, stages."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import ClassVar

from msgspec.structs import replace

from samebits.engines.schedule import BUCKETS, POWERS, Schedule, ScheduleKey


class GroupedSchedule(Schedule, tag="triton.grouped", frozen=True, kw_only=True):
    """How a grouped product runs.

    Attributes:
        block_m: rows of x in a tile.
        block_n: rows of a weight in a tile (of gate and up together where they meet in one).
        block_k: elements of the reduction axis that are loaded at once.
        swap: the weight is the left operand of the tensor core, for tiles of fewer than 64 rows.
        persistent: one program a processor walks over tiles, and blocks come by TMA; rows of x are
            sorted by expert beforehand. For chains of 16-bit operands with many rows.
        band: row tiles that share a column of weight tiles before the next column's turn.
        num_warps, num_stages: of the program.
    """

    block_m: int
    block_n: int
    block_k: int
    swap: bool = False
    persistent: bool = False
    band: int = 8
    num_warps: int = 4
    num_stages: int = 4

    allowed: ClassVar[Mapping[str, Container[int]]] = {
        **dict.fromkeys(("block_m", "block_n", "block_k"), POWERS[4:10]),
        "band": range(1, 1 << 16),
        "num_warps": POWERS[:5],
        "num_stages": range(1, 17),
    }


def default(key: ScheduleKey, bucket: int) -> GroupedSchedule:
    """The schedule of a bucket of slots, from the rows that an expert gets on average.

    Few rows: the weight streams through the 64-wide side of the tensor core, some 128 KB in flight
    on a multiprocessor. Many rows: tiles as in a dense product.
    """
    rows = -(-_slots(bucket) // (key.experts or 1))
    if key.dtype == "fp32":
        return _FMA[rows > 16]
    for most, tile in _TILES:
        if rows <= most:
            return _fitting(key, tile)
    return _fitting(key, _LARGEST)


def candidates(key: ScheduleKey, bucket: int) -> list[GroupedSchedule]:
    """Schedules worth timing for a bucket, the default first; all have the same bits."""
    first = default(key, bucket)
    if key.dtype == "fp32":
        return list(dict.fromkeys([first, *_FMA]))
    rows = -(-_slots(bucket) // (key.experts or 1))
    others = [_fitting(key, tile) for low, high, tile in _CANDIDATES if low <= rows <= high]
    return list(dict.fromkeys([first, *others]))


def _slots(bucket: int) -> int:
    """The slots that a bucket stands for: its largest number, far more for the open end."""
    return BUCKETS[bucket] if bucket < len(BUCKETS) else 4 * BUCKETS[-1]


def _fitting(key: ScheduleKey, s: GroupedSchedule) -> GroupedSchedule:
    """A schedule of 16-bit operands for those of `key`.

    fp8 has the contract's bits from tiles of 64 rows and more; scaled blocks are one step each.
    """
    if key.dtype not in ("e4m3", "e5m2"):
        return s
    if s.persistent:
        s = replace(s, persistent=False, block_n=128)
    block_k = 128 if key.scaling == "block" else 2 * s.block_k
    return replace(s, block_k=block_k, num_stages=3 if s.block_m * s.block_n > 8192 else 4)


def _tile(
    block_m: int, block_n: int, block_k: int, num_stages: int, *, swap: bool = False,
    persistent: bool = False, num_warps: int = 4,
) -> GroupedSchedule:  # fmt: skip
    return GroupedSchedule(
        block_m=block_m, block_n=block_n, block_k=block_k, num_stages=num_stages, swap=swap,
        persistent=persistent, num_warps=num_warps,
    )  # fmt: skip


_LARGEST = _tile(128, 256, 64, 4, persistent=True, num_warps=8)
#: (up to so many rows of an expert, tile)
_TILES = (
    (12, _tile(16, 128, 128, 4, swap=True)),
    (24, _tile(32, 64, 128, 4, swap=True)),
    (96, _tile(64, 128, 64, 4)),
)
#: (from, up to so many rows of an expert, tile)
_CANDIDATES = (
    (0, 12, _tile(16, 128, 128, 4, swap=True)),
    (0, 12, _tile(16, 64, 128, 6, swap=True)),
    (0, 12, _tile(16, 64, 256, 4, swap=True)),
    (0, 12, _tile(16, 128, 64, 6, swap=True)),
    (4, 48, _tile(32, 64, 128, 4, swap=True)),
    (4, 48, _tile(32, 128, 64, 5, swap=True)),
    (12, 96, _tile(64, 64, 128, 4, swap=True)),
    (12, 200, _tile(64, 128, 64, 4, swap=True)),
    (24, 200, _tile(64, 128, 64, 4)),
    (32, 400, _tile(64, 256, 64, 4, persistent=True)),
    (64, 1 << 30, _tile(128, 128, 64, 4, num_warps=8)),
    (64, 1 << 30, _tile(128, 128, 64, 5, persistent=True, num_warps=8)),
    (64, 1 << 30, _LARGEST),
    (200, 1 << 30, _tile(256, 128, 64, 4, persistent=True, num_warps=8)),
)
#: fp32 has no tensor core: IEEE fma in registers.
_FMA = (_tile(16, 64, 32, 4), _tile(32, 64, 32, 4))
