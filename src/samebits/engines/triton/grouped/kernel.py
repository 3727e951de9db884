"""The grouped product: rows of x, each with the weight of its expert, in the tree of `linear`.

A tile belongs to one expert. Programs find theirs from the edges of the sorted groups, so that the
grid needs only an upper bound of the number of tiles and nothing waits for the host; programs past
the last tile return. A row of a tensor-core tile is a function of that row alone, so what fills a
tile up (row 0 here) cannot matter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton.functions import silu
from samebits.engines.triton.grouped.tiles import blank_unused, load_edges, tile_of
from samebits.engines.triton.linear.tile import largest_half


@triton.jit
def grouped_linear_kernel(
    x, weight, bias, x_scale, w_scale, out, order, edges,
    n, k, experts, slots_per_row, leaf,
    stride_x, stride_expert, stride_weight, stride_k, stride_bias,
    stride_x_scale, stride_expert_scale, stride_w_scale, stride_out,
    GROUPS: tl.constexpr, LEAVES: tl.constexpr, PAIRWISE: tl.constexpr, SCALING: tl.constexpr,
    GATHER: tl.constexpr, SCATTER: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr,
    SWAP: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """out[row] = epilogue(x[row] @ weight[expert].T), one tile a program.

    Args:
        x: [rows, k], k contiguous; weight: [experts, n, k].
        x_scale: SCALING "row": [rows]; "block": [rows, ceil(k / 128)].
        w_scale: SCALING "row": [experts, n]; "block": [experts, ceil(n / 128), ceil(k / 128)].
        order, edges: of `routing.Groups`. Sorted place p holds slot order[p].
        slots_per_row: GATHER: place p reads row order[p] // slots_per_row of x, else row p.
        leaf: length of each of the tree's LEAVES along k, which are folded ascending or PAIRWISE.
        SCATTER: place p is stored to row order[p] of out, else to row p.
        GATED: the weight's upper half is the gate, its lower half what the gate opens: output
            column c is silu(gate column c) * column c, each rounded to the type of out as separate
            operations would. Both meet in one tile, rows alternating.
        SWAP: the weight is the left operand.
        WHOLE: leaves are whole numbers of BLOCK_K.
    """
    columns = n // 2 if GATED else n
    COLUMNS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    column_tiles = tl.cdiv(columns, COLUMNS)
    first, last, ends = load_edges(edges, experts, BLOCK_M, GROUPS)
    if tl.program_id(0) >= tl.max(ends) * column_tiles:
        return
    expert, begin, end, column_tile = tile_of(
        tl.program_id(0), column_tiles, first, last, ends, BLOCK_M, GROUPS, BAND
    )
    place = begin + tl.arange(0, BLOCK_M)
    real = place < end
    place = tl.where(real, place, begin)
    slot = place
    if GATHER or SCATTER:
        slot = tl.load(order + place)
    source = (slot // slots_per_row if GATHER else place).to(tl.int64)
    target = (slot if SCATTER else place).to(tl.int64)

    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    stored = real[:, None] & (column < columns)[None, :]
    to = out + target[:, None] * stride_out + column[None, :]
    if expert >= experts:
        blank = blank_unused(tl.zeros([BLOCK_M, COLUMNS], tl.float32), expert, experts)
        tl.store(to, blank.to(out.dtype.element_ty), stored)
        return

    lane = tl.arange(0, BLOCK_N)
    if GATED:
        pair = column_tile * COLUMNS + lane // 2
        row = tl.where(pair < columns, pair + (lane % 2) * columns, 0)
    else:
        row = column_tile * COLUMNS + lane
        row = tl.where(row < columns, row, 0)
    x_at = x + source * stride_x
    w_at = weight + expert.to(tl.int64) * stride_expert + row.to(tl.int64) * stride_weight
    if SCALING == "block":
        xs_at = x_scale + source * stride_x_scale
        ws_at = w_scale + expert.to(tl.int64) * stride_expert_scale + row // 128 * stride_w_scale
        acc = _scaled_blocks(
            x_at, w_at, xs_at, ws_at, k, SWAP, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K
        )  # fmt: skip
    else:
        acc = _folded(
            x_at, w_at, k, stride_k, leaf, 0, LEAVES, PAIRWISE,
            SWAP, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    if SWAP:
        acc = tl.trans(acc)
    if SCALING == "row":
        xs = tl.load(x_scale + source * stride_x_scale)
        ws = tl.load(w_scale + expert * stride_expert_scale + row)
        acc *= xs[:, None] * ws[None, :]
    if BIAS:
        acc += tl.load(bias + expert * stride_bias + row).to(tl.float32)[None, :]
    y = acc.to(out.dtype.element_ty)
    if GATED:
        gate, up = tl.split(tl.reshape(y, (BLOCK_M, COLUMNS, 2)))
        gate = silu(gate.to(tl.float32)).to(y.dtype)
        y = (gate.to(tl.float32) * up.to(tl.float32)).to(y.dtype)
    tl.store(to, y, stored)


@triton.jit
def _operands(
    x_at, w_at, k, stop, stride_k, SWAP: tl.constexpr, WHOLE: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Left and right operand of a step at k; elements from `stop` on are zeros."""
    at = k + tl.arange(0, BLOCK_K)
    if SWAP:
        left = w_at[:, None] + at[None, :] * stride_k
        right = x_at[None, :] + at[:, None]
    else:
        left = x_at[:, None] + at[None, :]
        right = w_at[None, :] + at[:, None] * stride_k
    if WHOLE:
        a = tl.load(left)
        b = tl.load(right)
    else:
        a = tl.load(left, (at < stop)[None, :], other=0.0)
        b = tl.load(right, (at < stop)[:, None], other=0.0)
    return a, b


@triton.jit
def _folded(
    x_at, w_at, k, stride_k, leaf,
    FIRST: tl.constexpr, LEAVES: tl.constexpr, PAIRWISE: tl.constexpr,
    SWAP: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """LEAVES leaves from the FIRST on, folded: fp32 [BLOCK_M, BLOCK_N]; transposed if SWAP."""
    if LEAVES > 1 and PAIRWISE:
        half: tl.constexpr = largest_half(LEAVES)
        total = _folded(
            x_at, w_at, k, stride_k, leaf, FIRST, half, True,
            SWAP, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        total += _folded(
            x_at, w_at, k, stride_k, leaf, FIRST + half, LEAVES - half, True,
            SWAP, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    else:
        total = _chain(x_at, w_at, k, stride_k, leaf, FIRST, SWAP, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K)
        if LEAVES > 1:
            for index in range(FIRST + 1, FIRST + LEAVES):
                total += _chain(
                    x_at, w_at, k, stride_k, leaf, index, SWAP, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K
                )
    return total


@triton.jit
def _chain(
    x_at, w_at, k, stride_k, leaf, index, SWAP: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The index-th leaf."""
    shape: tl.constexpr = (BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N)
    acc = tl.zeros(shape, tl.float32)
    stop = min(index * leaf + leaf, k)
    for at in range(index * leaf, stop, BLOCK_K):
        a, b = _operands(x_at, w_at, at, stop, stride_k, SWAP, WHOLE, BLOCK_K)
        acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=tl.float32)
    return acc


@triton.jit
def _scaled_blocks(
    x_at, w_at, xs_at, ws_at, stop, SWAP: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Leaves of 128 of k, each with its scales: acc = fma(leaf, x_scale * w_scale, acc)."""
    tl.static_assert(BLOCK_K == 128)
    shape: tl.constexpr = (BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N)
    acc = tl.zeros(shape, tl.float32)
    for k in range(0, stop, BLOCK_K):
        a, b = _operands(x_at, w_at, k, stop, 1, SWAP, WHOLE, BLOCK_K)
        part = tl.dot(a, b, out_dtype=tl.float32)
        xs = tl.load(xs_at + k // 128)
        ws = tl.load(ws_at + k // 128)
        scale = ws[:, None] * xs[None, :] if SWAP else xs[:, None] * ws[None, :]
        acc = tl.fma(part, scale, acc)
    return acc
