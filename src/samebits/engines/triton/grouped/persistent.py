"""Grouped products with many rows: one program a processor walks over tiles, blocks come by TMA.

The rows of x lie sorted by expert. A tile's blocks may reach into the next expert's rows: they are
computed with this one's weight and not stored. The tree is a chain.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton.functions import silu
from samebits.engines.triton.grouped.tiles import blank_unused, load_edges, tile_of


@triton.jit
def grouped_persistent_kernel(
    x, weight, bias, out, order, edges,
    n, k, experts, stride_bias, stride_out,
    GROUPS: tl.constexpr, SCATTER: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """out[row] = epilogue(x[place] @ weight[expert].T); see `kernel.grouped_linear_kernel`.

    Args:
        x: tensor descriptor of [slots, k], blocks [BLOCK_M, BLOCK_K].
        weight: tensor descriptor of [experts * n, k], blocks [BLOCK_N / 2, BLOCK_K].
    """
    HALF: tl.constexpr = BLOCK_N // 2
    COLUMNS: tl.constexpr = HALF if GATED else BLOCK_N
    columns = n // 2 if GATED else n
    column_tiles = tl.cdiv(columns, COLUMNS)
    first, last, ends = load_edges(edges, experts, BLOCK_M, GROUPS)
    tiles = tl.max(ends) * column_tiles
    for index in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        expert, start, end, column_tile = tile_of(
            index, column_tiles, first, last, ends, BLOCK_M, GROUPS, BAND
        )
        column = column_tile * COLUMNS
        left_row = expert * n + column
        right_row = left_row + (columns if GATED else HALF)
        left = tl.zeros((BLOCK_M, HALF), tl.float32)
        right = tl.zeros((BLOCK_M, HALF), tl.float32)
        for at in range(0, k, BLOCK_K):
            rows = x.load([start, at])
            left = tl.dot(rows, weight.load([left_row, at]).T, left)
            right = tl.dot(rows, weight.load([right_row, at]).T, right)
        place = start + tl.arange(0, BLOCK_M)
        real = place < end
        target = place
        if SCATTER:
            target = tl.load(order + place, real, other=0)
        to = out + target.to(tl.int64)[:, None] * stride_out
        in_half = tl.arange(0, HALF)
        if BIAS:
            own = bias + min(expert, experts - 1) * stride_bias + column + in_half
            left += tl.load(own, in_half < columns - column, other=0.0).to(tl.float32)[None, :]
            gap = columns if GATED else HALF
            valid = in_half < columns - column - (0 if GATED else HALF)
            right += tl.load(own + gap, valid, other=0.0).to(tl.float32)[None, :]
        kind = out.dtype.element_ty
        if GATED:
            gate = silu(left.to(kind).to(tl.float32)).to(kind)
            y = gate.to(tl.float32) * right.to(kind).to(tl.float32)
            stored = real[:, None] & (in_half < columns - column)[None, :]
            tl.store(
                to + (column + in_half)[None, :], blank_unused(y, expert, experts).to(kind), stored
            )
        else:
            for side in tl.static_range(2):
                y = blank_unused(right if side else left, expert, experts).to(kind)
                at_column = column + side * HALF + in_half
                stored = real[:, None] & (at_column < columns)[None, :]
                tl.store(to + at_column[None, :], y, stored)
