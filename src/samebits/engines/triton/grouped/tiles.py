"""Which tile a program computes: found from the edges of the sorted groups, on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton.functions import chips_nan


@triton.jit
def load_edges(edges, experts, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr):
    """Each group's first place, its end, and the number of row tiles up to it and with it.

    GROUPS is a power of two that holds the experts and the two unused groups.
    """
    group = tl.arange(0, GROUPS)
    known = group < experts + 2
    first = tl.load(edges + group, known, other=0)
    last = tl.load(edges + group + 1, known, other=0)
    return first, last, tl.cumsum((last - first + BLOCK_M - 1) // BLOCK_M)


@triton.jit
def tile_of(
    index, column_tiles, first, last, ends,
    BLOCK_M: tl.constexpr, GROUPS: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """(expert, first place, end of the expert's places, column tile) of the index-th tile.

    BAND row tiles side by side share columns of weight tiles, which then come from the L2 cache.
    """
    row_tiles = tl.max(ends)
    band = index // (BAND * column_tiles)
    height = min(row_tiles - band * BAND, BAND)
    within = index % (BAND * column_tiles)
    tile = band * BAND + within % height
    expert = tl.sum((ends <= tile).to(tl.int32))
    mine = tl.arange(0, GROUPS) == expert
    start = tl.sum(tl.where(mine, first, 0))
    end = tl.sum(tl.where(mine, last, 0))
    before = tl.max(tl.where(tl.arange(0, GROUPS) < expert, ends, 0))
    return expert, start + (tile - before) * BLOCK_M, end, within // height


@triton.jit
def blank_unused(y, expert, experts):
    """+0 for slots without an expert, NaN for those of no such expert, `y` for all others."""
    y = tl.where(expert == experts, tl.zeros_like(y), y)
    return tl.where(expert > experts, chips_nan(y), y)
