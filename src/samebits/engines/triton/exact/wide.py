"""Exact products by way of fp64: few rows, fp32 operands, fp32 results.

Products of two fp32 numbers are exact in fp64, so only the additions of the matrix unit's fp64 sums
round, and Cauchy and Schwarz bound what they lose. Which tile, how many warps, and in which order k
is walked does not matter: a result is certain, or summed again without rounding.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton.exact.again import product_again
from samebits.engines.triton.exact.numbers import SLACK, UNIT, certain


@triton.jit
def _halves(words):
    """The two bf16 numbers of a 32-bit word, as fp64: half of a sum's terms, and the others."""
    low = (words << 16).to(tl.float32, bitcast=True)
    high = (words & -65536).to(tl.float32, bitcast=True)
    return low.to(tl.float64), high.to(tl.float64)


@triton.jit
def wide_kernel(
    x, w, c, y, m, n, k,
    x_batch, x_row, w_batch, w_row, c_batch, c_row, c_col, y_batch,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HAS_C: tl.constexpr,
    PARTIAL: tl.constexpr,
):  # fmt: skip
    """y[b] = R(x[b] @ w[b].T + c[b]): x [B, m, k], w [B, n, k], c fp32, y [B, m, n] contiguous.

    x and w are both fp32, or both bf16 with words of two that are aligned: k, row and batch strides
    are even. Columns are contiguous. PARTIAL: y is fp64, the sums as they are, and c, as large,
    gets what they may be wrong by.
    """
    OUT: tl.constexpr = y.dtype.element_ty
    batch = tl.program_id(2).to(tl.int64)
    x += batch * x_batch
    w += batch * w_batch
    y += batch * y_batch
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    x_at = rows.to(tl.int64) * x_row
    w_at = columns.to(tl.int64) * w_row
    acc = tl.zeros([BM, BN], tl.float64)
    x_squares = tl.zeros([BM, BK], tl.float64)
    w_squares = tl.zeros([BN, BK], tl.float64)
    # bf16 is read in words of two: Triton has no fp64 product of operands that were 16 bits wide.
    PACKED: tl.constexpr = x.dtype.element_ty == tl.bfloat16
    x_words = x.to(tl.pointer_type(tl.int32 if PACKED else tl.float32))
    w_words = w.to(tl.pointer_type(tl.int32 if PACKED else tl.float32))
    if PACKED:
        x_at, w_at, steps = x_at // 2, w_at // 2, k // 2
    else:
        steps = k
    for start in range(0, steps, BK):
        i = start + tl.arange(0, BK)
        inside = (i < steps)[None, :]
        a = tl.load(x_words + x_at[:, None] + i[None, :], mask=inside & (rows < m)[:, None],
                    other=0)  # fmt: skip
        b = tl.load(w_words + w_at[:, None] + i[None, :], mask=inside & (columns < n)[:, None],
                    other=0)  # fmt: skip
        if PACKED:
            a, a_high = _halves(a)
            b, b_high = _halves(b)
            x_squares += a_high * a_high
            w_squares += b_high * b_high
            acc = tl.dot(a_high, tl.trans(b_high), acc, out_dtype=tl.float64)
        else:
            a = a.to(tl.float64)
            b = b.to(tl.float64)
        x_squares += a * a
        w_squares += b * b
        acc = tl.dot(a, tl.trans(b), acc, out_dtype=tl.float64)
    norms = tl.sqrt(tl.sum(x_squares, 1))[:, None] * tl.sqrt(tl.sum(w_squares, 1))[None, :]
    e = norms * ((k + 64) * (UNIT * SLACK))
    here = (rows < m)[:, None] & (columns < n)[None, :]
    y_at = (rows.to(tl.int64) * n)[:, None] + columns[None, :]
    if PARTIAL:
        tl.store(y + y_at, acc, mask=here)
        tl.store(c + y_at, tl.where(tl.abs(acc) < float("inf"), e, 0.0), mask=here)
    else:
        total = acc
        if HAS_C:
            c += batch * c_batch
            c_at = (rows.to(tl.int64) * c_row)[:, None] + (columns.to(tl.int64) * c_col)[None, :]
            d = tl.load(c + c_at, mask=here, other=0.0).to(tl.float64)
            total = acc + d
            v = total - acc
            lost = tl.abs((acc - (total - v)) + (d - v))  # Knuth's TwoSum: exact
            e += lost
        result, sure = certain(total, e, OUT)
        tl.store(y + y_at, result, mask=here)
        number = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        open_ = tl.min(tl.min(tl.where(here & ~sure, number, BM * BN), 1), 0)
        while open_ < BM * BN:
            r = tl.program_id(1) * BM + open_ // BN
            col = tl.program_id(0) * BN + open_ % BN
            term = 0.0
            if HAS_C:
                term = tl.load(c + r.to(tl.int64) * c_row + col.to(tl.int64) * c_col)
            exact = product_again(x + r.to(tl.int64) * x_row, w + col.to(tl.int64) * w_row, 1, 1,
                                  k, term, OUT)  # fmt: skip
            tl.store(y + r.to(tl.int64) * n + col, exact)
            open_ = tl.min(tl.min(tl.where(here & ~sure & (number > open_), number, BM * BN), 1), 0)
