"""Schedules of row operations, and the analytical default. Pure data: needs no Triton."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import ClassVar

from samebits.contract.rows import HOPPER_LANES, HOPPER_LEAF
from samebits.engines.schedule import BUCKETS, POWERS, Schedule, ScheduleKey

#: Of the tree of rows on sm_90.
LEAF, LANES = HOPPER_LEAF, HOPPER_LANES
#: The longest row that a program keeps in its registers.
LONGEST_TILE = 2 * LEAF
#: Leaves that one program folds.
MOST_LEAVES = 8192


class RowSchedule(Schedule, tag="triton.rows", frozen=True, kw_only=True):
    """How programs share rows. A row of several leaves is shared by a program a leaf.

    Attributes:
        rows: rows of a program, where a program holds whole rows.
        num_warps: warps of a program.
    """

    rows: int = 1
    num_warps: int = 4

    allowed: ClassVar[Mapping[str, Container[int]]] = {
        "rows": POWERS[:11],
        "num_warps": POWERS[:5],
    }


def cdiv(a: int, b: int) -> int:
    """a / b rounded up. (`triton.cdiv` takes 3 us on the host.)"""
    return -(-a // b)


def power_above(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def width_of(n: int) -> int:
    """Lanes of a chunk of a row of n elements: n rounded up to a power of two, at most 1024."""
    return min(LANES, power_above(max(n, 2)))


def leaves_of(n: int) -> int:
    """Leaves of a row of n elements."""
    return max(1, cdiv(n, LEAF))


def default(key: ScheduleKey, bucket: int) -> RowSchedule:
    """The schedule of a row operation over rows of ``key.k`` elements.

    Short rows share a program once there are more of them than SMs (132). Long ones take eight
    warps while there are too few to fill the chip, or where registers ask for it.
    """
    n, rows = key.k or LANES, BUCKETS[min(bucket, len(BUCKETS) - 1)]
    width = width_of(n)
    if width < LANES:
        share = max(1, min(2 * LANES // width, rows // 132))
        share = 1 << share.bit_length() - 1
        return RowSchedule(rows=share, num_warps=1 if share * width <= 256 else 4)
    norm = key.op in ("rms_norm", "layer_norm")
    return RowSchedule(num_warps=8 if (n > 5 * LANES and norm) or rows <= 16 else 4)


def candidates(key: ScheduleKey, bucket: int) -> list[RowSchedule]:
    """Schedules worth measuring for rows of ``key.k`` elements, whatever the bucket."""
    width = width_of(key.k or LANES)
    shares = (1, 2, 4, 8, 16, 32) if width < LANES else (1,)
    return [
        RowSchedule(rows=rows, num_warps=warps)
        for rows in shares
        for warps in (1, 2, 4, 8, 16)
        if 256 <= rows * width // warps * 8 <= 16384
    ]
