"""Exact products by way of fp64: few rows, fp32 operands, fp32 results.

Products of two fp32 numbers are exact in fp64, so only the additions of the matrix unit's fp64 sums
round: each by at most 2^-53 of a sum of magnitudes, which is below max |x| sum |w|. Which tile, how
many warps, how many parts of k, and in which order k is walked does not matter: a result is
certain, or summed again in another way.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton.exact.numbers import SLACK, UNIT, add_pairs
from samebits.engines.triton.exact.settle import settle


@triton.jit
def _halves(words):
    """The two bf16 numbers of a 32-bit word, as fp32: half of a sum's terms, and the others."""
    low = (words << 16).to(tl.float32, bitcast=True)
    high = (words & -65536).to(tl.float32, bitcast=True)
    return low, high


@triton.jit
def wide_kernel(
    x, w, sums, x_tops, w_sizes, m, n, k, span, items,
    x_batch, x_row, w_batch, w_row,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Part s of k: sums[s, b] = x[b] @ w[b].T in fp64, and what bounds the error.

    x and w are both fp32, or both bf16 with words of two that are aligned: k, row and batch strides
    are even. Columns are contiguous.

    Args:
        x, w: [B, m, k] and [B, n, k]; B: `items`.
        sums: [S, B, m, n] fp64, contiguous.
        x_tops, w_sizes: [S, B, m] and [S, B, n] fp32, contiguous: the largest magnitudes, and the
            sums of magnitudes, of the rows' parts.
        span: words (bf16), or numbers, of a part; a multiple of BK.
    """
    item = tl.program_id(2) % items
    part = tl.program_id(2) // items
    batch = item.to(tl.int64)
    x += batch * x_batch
    w += batch * w_batch
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    x_at = rows.to(tl.int64) * x_row
    w_at = columns.to(tl.int64) * w_row
    acc = tl.zeros([BM, BN], tl.float64)
    x_top = tl.zeros([BM, BK], tl.float32)
    w_size = tl.zeros([BN, BK], tl.float32)
    # bf16 is read in words of two: Triton has no fp64 product of operands that were 16 bits wide.
    PACKED: tl.constexpr = x.dtype.element_ty == tl.bfloat16
    x_words = x.to(tl.pointer_type(tl.int32 if PACKED else tl.float32))
    w_words = w.to(tl.pointer_type(tl.int32 if PACKED else tl.float32))
    if PACKED:
        x_at, w_at, steps = x_at // 2, w_at // 2, k // 2
    else:
        steps = k
    begin = part * span
    end = tl.minimum(begin + span, steps)
    for start in range(begin, end, BK):
        i = start + tl.arange(0, BK)
        inside = (i < end)[None, :]
        a = tl.load(x_words + x_at[:, None] + i[None, :], mask=inside & (rows < m)[:, None],
                    other=0)  # fmt: skip
        b = tl.load(w_words + w_at[:, None] + i[None, :], mask=inside & (columns < n)[:, None],
                    other=0)  # fmt: skip
        if PACKED:
            a, a_high = _halves(a)
            b, b_high = _halves(b)
            x_top = tl.maximum(x_top, tl.abs(a_high))
            w_size += tl.abs(b_high)
            acc = tl.dot(a_high.to(tl.float64), tl.trans(b_high.to(tl.float64)), acc,
                         out_dtype=tl.float64)  # fmt: skip
        x_top = tl.maximum(x_top, tl.abs(a))
        w_size += tl.abs(b)
        acc = tl.dot(a.to(tl.float64), tl.trans(b.to(tl.float64)), acc, out_dtype=tl.float64)
    at = part * items + batch
    # Programs of one row (column) of tiles write the same numbers.
    tl.store(x_tops + at * m + rows, tl.max(x_top, 1), mask=rows < m)
    tl.store(w_sizes + at * n + columns, tl.sum(w_size, 1), mask=columns < n)
    here = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(sums + (at * m + rows.to(tl.int64))[:, None] * n + columns[None, :], acc, mask=here)


@triton.jit
def _joined(
    sums, x_tops, w_sizes, r, columns, here, item, items, m, n, terms, parts, PARTS: tl.constexpr
):  # fmt: skip
    """Sums of all parts, in fp64, and what they may be wrong by; `terms`: of a part."""
    part = tl.arange(0, PARTS)[:, None].to(tl.int64)
    at = part * items + item
    there = (part < parts) & here[None, :]
    some = tl.load(sums + (at * m + r) * n + columns[None, :], mask=there, other=0.0)
    total, rest = tl.reduce((some, tl.zeros_like(some)), 0, add_pairs)
    total = tl.where(tl.abs(total) < float("inf"), total + rest, total)
    top = tl.load(x_tops + at * m + r, mask=part < parts, other=0.0).to(tl.float64)
    size = tl.load(w_sizes + at * n + columns[None, :], mask=there, other=0.0).to(tl.float64)
    # The sizes were added up in fp32; 64 is more than the sum of the parts errs by.
    slack = (terms + 64) * (UNIT * SLACK) * (1.0 + terms * 2.0**-23)
    e = tl.sum(top * size, 0) * slack
    return total, tl.where(e < float("inf"), e, float("inf"))


@triton.jit
def join_wide_kernel(
    sums, x_tops, w_sizes, x, w, c, y, m, n, k, terms, parts,
    x_batch, x_row, w_batch, w_row, c_batch, c_row, c_col,
    HAS_C: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """y[b] = R(x[b] @ w[b].T + c[b]) from what `wide_kernel` left: y [B, m, n] contiguous, c fp32.

    A program a row, item and BLOCK columns.
    """
    r, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total, e = _joined(sums, x_tops, w_sizes, r, columns, columns < n, batch, tl.num_programs(2),
                       m, n, terms, parts, PARTS)  # fmt: skip
    if HAS_C:
        c += batch * c_batch + r * c_row
    settle(x + batch * x_batch + r * x_row, w + batch * w_batch, c, y + (batch * m + r) * n, total,
           e, columns, n, k, w_row, c_col, HAS_C, BLOCK)  # fmt: skip


@triton.jit
def partial_kernel(
    sums, x_tops, w_sizes, y, e, m, n, terms, parts, BLOCK: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """y, e = the sums of all parts and what they may be wrong by, [m, n] fp64."""
    r = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = columns < n
    total, bound = _joined(sums, x_tops, w_sizes, r, columns, here, r * 0, 1, m, n, terms, parts,
                           PARTS)  # fmt: skip
    tl.store(y + r * n + columns, total, mask=here)
    tl.store(e + r * n + columns, tl.where(tl.abs(total) < float("inf"), bound, 0.0), mask=here)
