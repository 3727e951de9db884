"""The end of every exact product: sums with a bound of their error become results."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton.exact.again import product_again
from samebits.engines.triton.exact.numbers import certain, two_sum


@triton.jit
def settle(
    x, w, c, y, sums, e, columns, n, k, w_row, c_col, HAS_C: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Some columns of one row of y = R(x @ w.T + c); those below n are stored.

    Args:
        x, c, y: the row, its terms (fp32, `c_col` apart), and its results.
        w: [n, k], rows `w_row` apart.
        sums, e: [BLOCK] fp64, x @ w.T and what it may be wrong by; not certain if e is not finite.
    """
    OUT: tl.constexpr = y.dtype.element_ty
    here = columns < n
    if HAS_C:
        d = tl.load(c + columns.to(tl.int64) * c_col, mask=here, other=0.0).to(tl.float64)
        sums, rest = two_sum(sums, d)
        e += tl.abs(rest)
    result, sure = certain(sums, e, OUT)
    tl.store(y + columns, result, mask=here)
    number = tl.arange(0, BLOCK)
    open_ = tl.min(tl.where(here & ~sure, number, BLOCK), 0)
    first = tl.min(columns, 0)
    while open_ < BLOCK:
        at = first + open_
        term = 0.0
        if HAS_C:
            term = tl.load(c + at.to(tl.int64) * c_col)
        tl.store(y + at, product_again(x, w + at.to(tl.int64) * w_row, 1, 1, k, term, OUT))
        open_ = tl.min(tl.where(here & ~sure & (number > open_), number, BLOCK), 0)
