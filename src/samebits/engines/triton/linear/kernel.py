"""Matrix products, one tile a program: every tree, dtype, stride, alignment and scaling.

``y[r, c] = epilogue(sum_k a[r, k] * b[c, k])``. The kernel does not know which operand is the
weight: a launcher that hands over (w, x) with the strides of y exchanged computes the transposed
product, which puts the weight on the 64-wide side of the tensor core's instruction. Such a schedule
has the same bits, for a product of two numbers and a sum of leaves do not know sides.

Operands are loaded by pointers, or, where their strides allow it, in blocks by the copy engine.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton import path
from samebits.engines.triton.linear.tile import (
    break_seals,
    chain,
    close_seal,
    finish,
    fold_partials,
    tile_of,
    walk,
)


@triton.jit
def gemm_kernel(
    a, b, c, y, a_scale, b_scale, partials, arrivals, seals, ticket,
    rows, cols, k, leaf,
    a_row, a_k, a_batch, b_row, b_k, b_batch, c_row, c_col, c_batch, y_row, y_col, y_batch,
    a_scale_row, a_scale_k, b_scale_row, b_scale_k,
    alpha, beta,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    LEAVES: tl.constexpr, PAIRWISE: tl.constexpr, SPLIT: tl.constexpr, EVEN_K: tl.constexpr,
    WIDE: tl.constexpr, FMA: tl.constexpr, TMA: tl.constexpr, A_TURNED: tl.constexpr,
    B_TURNED: tl.constexpr,
    SCALING: tl.constexpr, A_SCALE_BLOCK: tl.constexpr, B_SCALE_BLOCK: tl.constexpr,
    ALPHA: tl.constexpr, BIAS: tl.constexpr, BETA: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """One tile of y, or with SPLIT one leaf of one tile.

    Args:
        a, b: [batch, rows, k] and [batch, cols, k], any strides (in elements); with TMA, tensor
            descriptors of [rows, k] and [cols, k] (of [k, rows], [k, cols] if turned).
        c: bias; BIAS says how it varies: "rows", "cols", "both" or "none".
        y: [batch, rows, cols].
        a_scale, b_scale: fp32 [rows or blocks of rows, leaves or 1].
        partials: with SPLIT, fp32 [batch * tiles, LEAVES, BLOCK_R * BLOCK_C].
        arrivals: with SPLIT, int32 [batch * tiles], zero before and after.
        seals: with SPLIT and a ticket, int64 [batch * tiles, LEAVES, 2].
        ticket: address of one of `engines.tickets`: paths are checked; or None.
        leaf: elements of k in a leaf; LEAVES is how many leaves k has.
        EVEN_K: leaf and k are multiples of BLOCK_K.
        FMA: fp32 operands multiply by IEEE fma, not on the tensor core as tf32.
        WIDE: strides need 64-bit products inside a tile.
    """
    CHECK: tl.constexpr = ticket is not None
    if CHECK:
        agreed = path.expected_of(ticket)
    pid = tl.program_id(0)
    part = 0
    if SPLIT:
        part = pid % LEAVES
        pid = pid // LEAVES
    slot = pid
    tiles = tl.cdiv(rows, BLOCK_R) * tl.cdiv(cols, BLOCK_C)
    batch = (pid // tiles).to(tl.int64)
    tile_r, tile_c = tile_of(pid % tiles, rows, cols, BLOCK_R, BLOCK_C, GROUP)
    in_r = tl.arange(0, BLOCK_R)
    in_c = tl.arange(0, BLOCK_C)
    in_k = tl.arange(0, BLOCK_K)
    row = tile_r * BLOCK_R + in_r
    col = tile_c * BLOCK_C + in_c
    row_ok = row < rows
    col_ok = col < cols
    if WIDE:
        in_r = in_r.to(tl.int64)
        in_c = in_c.to(tl.int64)
        in_k = in_k.to(tl.int64)
    if TMA:
        a_tile = tile_r * BLOCK_R
        b_tile = tile_c * BLOCK_C
    else:
        a += batch * a_batch + (tile_r * BLOCK_R).to(tl.int64) * a_row
        b += batch * b_batch + (tile_c * BLOCK_C).to(tl.int64) * b_row
        a_tile = in_r[:, None] * a_row + in_k[None, :] * a_k
        b_tile = in_k[:, None] * b_k + in_c[None, :] * b_row

    if SPLIT:
        total = chain(
            a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, part * leaf, min(part * leaf + leaf, k),
            BLOCK_R, BLOCK_C, BLOCK_K, EVEN_K, FMA, TMA, A_TURNED, B_TURNED,
        )  # fmt: skip
        # A leaf of its own for every CTA. The last one to arrive folds them all, in order.
        area: tl.constexpr = BLOCK_R * BLOCK_C
        spot = in_r[:, None] * BLOCK_C + in_c[None, :]
        shelf = partials + (slot.to(tl.int64) * LEAVES) * area
        tl.store(shelf + part * area + spot, total)
        if CHECK:
            seals += slot.to(tl.int64) * LEAVES * 2
            close_seal(total, seals, part, part * leaf, min(part * leaf + leaf, k))
        tl.debug_barrier()  # the stores of all threads come before the arrival
        if tl.atomic_add(arrivals + slot, 1, sem="acq_rel") != LEAVES - 1:
            return
        tl.store(arrivals + slot, 0)
        total, word, folded, sealed = fold_partials(
            shelf + spot, seals, area, 0, LEAVES, PAIRWISE, CHECK
        )
    elif SCALING == "block":
        total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        a_scale += (tile_r * BLOCK_R).to(tl.int64) // A_SCALE_BLOCK * a_scale_row
        b_scale += (tile_c * BLOCK_C).to(tl.int64) // B_SCALE_BLOCK * b_scale_row
        word = tl.full((), 0, tl.uint32)
        for i in range(LEAVES):
            part_sum = chain(
                a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, i * leaf, min(i * leaf + leaf, k),
                BLOCK_R, BLOCK_C, BLOCK_K, EVEN_K, FMA, TMA, A_TURNED, B_TURNED,
            )  # fmt: skip
            scale_r = tl.load(
                a_scale + in_r // A_SCALE_BLOCK * a_scale_row + i * a_scale_k, row_ok, 0.0
            )
            scale_c = tl.load(
                b_scale + in_c // B_SCALE_BLOCK * b_scale_row + i * b_scale_k, col_ok, 0.0
            )
            total = tl.fma(part_sum, scale_r[:, None] * scale_c[None, :], total)
            if CHECK:
                word = path.fold_word(word, path.leaf_word(i * leaf, min(i * leaf + leaf, k)))
        if CHECK:
            path.judge(ticket, word == agreed)
    else:
        total = walk(
            a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, leaf, k, ticket, LEAVES, PAIRWISE,
            BLOCK_R, BLOCK_C, BLOCK_K, EVEN_K, FMA, TMA, A_TURNED, B_TURNED,
        )  # fmt: skip

    if SCALING == "row":
        scale_r = tl.load(a_scale + row.to(tl.int64) * a_scale_row, row_ok, 0.0)
        scale_c = tl.load(b_scale + col.to(tl.int64) * b_scale_row, col_ok, 0.0)
        total *= scale_r[:, None] * scale_c[None, :]
    if BIAS != "none":
        c += batch * c_batch + (tile_r * BLOCK_R).to(tl.int64) * c_row
        c += (tile_c * BLOCK_C).to(tl.int64) * c_col
    total = finish(
        total, c, in_r, in_c, row_ok, col_ok, c_row, c_col, alpha, beta, ALPHA, BIAS, BETA, RELU
    )
    y += batch * y_batch + (tile_r * BLOCK_R).to(tl.int64) * y_row
    y += (tile_c * BLOCK_C).to(tl.int64) * y_col
    y_tile = in_r[:, None] * y_row + in_c[None, :] * y_col
    tl.store(y + y_tile, total.to(y.dtype.element_ty), row_ok[:, None] & col_ok[None, :])
    if CHECK and SPLIT:  # when the result is on its way
        break_seals(seals, LEAVES)
        path.judge(ticket, word == agreed)
        path.judge(ticket, tl.sum(folded) == sealed)
