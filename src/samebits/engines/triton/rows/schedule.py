"""Schedules of row operations, and the analytical default. Pure data: needs no Triton."""

from __future__ import annotations

from typing import Literal

from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey

#: The tree of rows on sm_90: lanes of a leaf, and elements of a leaf.
LANES, LEAF = 1024, 8192
#: The longest row that a program keeps in its registers.
LONGEST_TILE = 2 * LEAF
#: Leaves that one program folds.
MOST_LEAVES = 8192


class RowSchedule(Schedule, tag="triton.rows", frozen=True, kw_only=True):
    """How programs share rows.

    Attributes:
        walk: "tile": a program holds `rows` whole rows; "stream": a program walks one row leaf by
            leaf; "leaves": a program takes one leaf, and a second kernel folds them.
        rows: rows of a program.
        num_warps: warps of a program.
    """

    walk: Literal["tile", "stream", "leaves"] = "tile"
    rows: int = 1
    num_warps: int = 4


def width_of(n: int) -> int:
    """Lanes of a chunk of a row of n elements: n rounded up to a power of two, at most 1024."""
    return min(LANES, 1 << max(n - 1, 1).bit_length())


def leaves_of(n: int) -> int:
    """Leaves of a row of n elements."""
    return max(1, -(-n // LEAF))


def default(key: ScheduleKey, bucket: int) -> RowSchedule:
    """The schedule of a row operation over rows of ``key.k`` elements.

    Short rows share a program once there are more than the chip's 132 SMs could take one each; a
    row of several leaves is shared by programs until there are enough rows to give one to each SM.
    """
    n, rows = key.k or LANES, BUCKETS[min(bucket, len(BUCKETS) - 1)]
    if n > LEAF and (key.op not in ("rms_norm", "layer_norm") or n > LONGEST_TILE):
        stream = key.op in ("softmax", "log_softmax") and rows >= 256
        return RowSchedule(walk="stream" if stream else "leaves", num_warps=8)
    width = width_of(n)
    if width < LANES:
        share = max(1, min(LANES // width, 16, rows // 132))
        return RowSchedule(rows=share, num_warps=1 if share * width < 512 else 4)
    return RowSchedule(num_warps=4 if n <= 5 * LANES else 8)


def candidates(key: ScheduleKey, bucket: int) -> list[RowSchedule]:
    """Schedules worth measuring for rows of ``key.k`` elements, whatever the bucket."""
    n = key.k or LANES
    if n > LONGEST_TILE or (n > LEAF and key.op not in ("rms_norm", "layer_norm")):
        return [
            RowSchedule(walk=walk, num_warps=warps)
            for walk in ("leaves", "stream")
            for warps in (4, 8, 16)
        ]
    if width_of(n) == LANES:
        return [RowSchedule(num_warps=warps) for warps in (2, 4, 8, 16)]
    return [
        RowSchedule(rows=rows, num_warps=warps)
        for rows in (1, 2, 4, 8, 16, 32)
        for warps in (1, 2, 4, 8)
        if rows * width_of(n) <= 8192
    ]
