"""Exact sums along rows, and of few terms for every column; norms and softmax around them."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton import functions
from samebits.engines.triton.exact.again import row_again, term_of, unit_exponent
from samebits.engines.triton.exact.numbers import SLACK, UNIT, certain, power_of_two, two_sum


@triton.jit
def row_kernel(
    x, y, count, n, row, length,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """y[r] = a value of x[r], r < count; rows of n contiguous elements.

    VALUE: "sum" or "squares": R(sum of the elements, or of their squares); "mean": S / length;
    "norm": sqrt(Q). length: n in fp32.
    """
    SQUARES: tl.constexpr = VALUE == "squares" or VALUE == "norm"
    OUT: tl.constexpr = tl.float32 if VALUE == "mean" or VALUE == "norm" else y.dtype.element_ty
    KIND: tl.constexpr = "squares" if SQUARES else "sum"
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = rows.to(tl.int64) * row
    total = tl.zeros([ROWS, BLOCK], tl.float64)
    size = tl.zeros([ROWS, BLOCK], tl.float32)
    low = tl.full([ROWS, BLOCK], float("inf"), tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = (i < n)[None, :] & (rows < count)[:, None]
        v = tl.load(x + at[:, None] + i[None, :], mask=inside, other=0.0).to(tl.float32)
        d = v.to(tl.float64)
        if SQUARES:
            total = tl.fma(d, d, total)
        else:
            total += d
            size += tl.abs(v)
            low = tl.minimum(low, tl.where(v == 0, float("inf"), tl.abs(v)))
    s = tl.sum(total, 1)
    if SQUARES:
        e = _error(s, n, BLOCK)
    else:
        e = _error_of_sum(tl.sum(size, 1), tl.min(low, 1), n, BLOCK, x.dtype.element_ty)
    result, sure = certain(s, e, OUT)
    here = rows < count
    tl.store(y + rows, _value(result, length, y.dtype.element_ty, VALUE), mask=here)
    number = tl.arange(0, ROWS)
    open_ = tl.min(tl.where(here & ~sure, number, ROWS), 0)
    while open_ < ROWS:
        r = tl.program_id(0) * ROWS + open_
        settled = row_again(x + r.to(tl.int64) * row, 1, n, 0.0, OUT, KIND)
        tl.store(y + r, _value(settled, length, y.dtype.element_ty, VALUE))
        open_ = tl.min(tl.where(here & ~sure & (number > open_), number, ROWS), 0)


@triton.jit
def _value(total, length, OUT: tl.constexpr, VALUE: tl.constexpr):
    """What VALUE is of a sum that was rounded once."""
    if VALUE == "mean":
        total = _stored(tl.div_rn(total, length), OUT)
    elif VALUE == "norm":
        total = _stored(tl.sqrt_rn(total), OUT)
    return total


@triton.jit
def _error(size, n, BLOCK: tl.constexpr):
    """Of a sum whose terms' magnitudes add up to `size`: a term goes through n / BLOCK additions,
    and then a fold of BLOCK in some order."""
    return size * ((n // BLOCK + BLOCK + 1) * (UNIT * SLACK))


@triton.jit
def _error_of_sum(size, low, n, BLOCK: tl.constexpr, IN: tl.constexpr):
    """As `_error`, of terms with signs: `size` in fp32, `low` the least magnitude but for zeros.

    Terms of one unit whose magnitudes add up to less than 2^53 of it were added without rounding.
    """
    FRACTION: tl.constexpr = 23 if tl.float32 == IN else (7 if tl.bfloat16 == IN else 10)
    size = size.to(tl.float64) * (1.0 + (n // BLOCK + BLOCK) * 2.0**-23)
    e = unit_exponent(low, FRACTION) + 53
    fits = size * SLACK < power_of_two(tl.maximum(tl.minimum(e, 1000), -1000))
    return tl.where(fits, 0.0, _error(size, n, BLOCK))


@triton.jit
def _exact(x, n, shift, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """S or Q of the terms of one row, fp32."""
    SQUARED: tl.constexpr = KIND == "squares" or KIND == "deviations"
    total = tl.zeros([BLOCK], tl.float64)
    size = tl.zeros([BLOCK], tl.float32)
    low = tl.full([BLOCK], float("inf"), tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
        a = term_of(v, i < n, shift, KIND)
        d = a.to(tl.float64)
        if SQUARED:
            total = tl.fma(d, d, total)
        else:
            total += d
        if KIND == "sum":
            size += tl.abs(a)
            low = tl.minimum(low, tl.where(a == 0, float("inf"), tl.abs(a)))
    s = tl.sum(total, 0)
    if KIND == "sum":
        e = _error_of_sum(tl.sum(size, 0), tl.min(low, 0), n, BLOCK, x.dtype.element_ty)
    else:
        e = _error(s, n, BLOCK)
    result, sure = certain(s, e, tl.float32)
    if ~sure:
        result = row_again(x, 1, n, shift, tl.float32, KIND)
    return result


@triton.jit
def _stored(v, OUT: tl.constexpr):
    """fp32 rounded to OUT; every NaN is the canonical one."""
    if tl.float32 == OUT:
        word = tl.where(v == v, v.to(tl.int32, bitcast=True), 0x7FC00000)
        result = word.to(tl.float32, bitcast=True)
    else:
        nan: tl.constexpr = 0x7FC0 if tl.bfloat16 == OUT else 0x7E00
        word = tl.where(v == v, v.to(OUT).to(tl.int16, bitcast=True), nan)
        result = word.to(tl.int16).to(OUT, bitcast=True)
    return result


@triton.jit
def norm_kernel(
    x, w, b, y, n, row, length, eps,
    BLOCK: tl.constexpr, LAYER: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
):  # fmt: skip
    """fma(d * r, w, b), r = 1 / sqrt(Q(d) / n + eps), d = x, or x - S(x) / n with LAYER.

    A program a row; y has contiguous rows; length: n in fp32.
    """
    OUT: tl.constexpr = y.dtype.element_ty
    r = tl.program_id(0).to(tl.int64)
    x += r * row
    y += r * n
    u = 0.0
    if LAYER:
        u = tl.div_rn(_exact(x, n, 0.0, BLOCK, "sum"), length)
        q = _exact(x, n, u, BLOCK, "deviations")
    else:
        q = _exact(x, n, 0.0, BLOCK, "squares")
    scale = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(q, length) + eps))
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < n
        v = tl.load(x + i, mask=inside, other=0.0).to(tl.float32)
        t = (v - u if LAYER else v) * scale
        if HAS_W:
            weight = tl.load(w + i, mask=inside, other=0.0).to(tl.float32)
            if HAS_B:
                t = tl.fma(t, weight, tl.load(b + i, mask=inside, other=0.0).to(tl.float32))
            else:
                t = t * weight
        elif HAS_B:
            t += tl.load(b + i, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + i, _stored(t, OUT), mask=inside)


@triton.jit
def softmax_kernel(x, y, n, row, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """ "softmax", "log_softmax" or "logsumexp" of a row: one program, formulas of `ExactContract`.

    y has contiguous rows, or one element a row.
    """
    OUT: tl.constexpr = y.dtype.element_ty
    r = tl.program_id(0).to(tl.int64)
    x += r * row
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < n, other=float("-inf")).to(tl.float32)
        top = tl.maximum(top, v)  # passes over NaN, which reaches the result through the sum
    m = tl.max(top, 0) + 0.0  # -0 becomes +0
    if KIND == "logsumexp":
        m = tl.where(tl.abs(m) == float("inf"), 0.0, m)
    s = _exact(x, n, m, BLOCK, "exp")
    if KIND == "softmax":
        for start in range(0, n, BLOCK):
            i = start + tl.arange(0, BLOCK)
            v = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
            t = tl.div_rn(functions.exp(v - m), tl.broadcast_to(s, [BLOCK]))
            tl.store(y + r * n + i, _stored(t, OUT), mask=i < n)
    else:
        one = tl.full([1], 0.0, tl.float32) + s
        log_s = functions.log(one)
        if KIND == "logsumexp":
            tl.store(y + r + tl.arange(0, 1), _stored(log_s + m, OUT))
        else:
            log_s = tl.sum(log_s, 0)
            for start in range(0, n, BLOCK):
                i = start + tl.arange(0, BLOCK)
                v = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
                tl.store(y + r * n + i, _stored((v - m) - log_s, OUT), mask=i < n)


@triton.jit
def exp_kernel(x, y, count, BLOCK: tl.constexpr):
    """y = exp(x), fp32."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < count, other=0.0)
    tl.store(y + i, functions.exp(v), mask=i < count)


@triton.jit
def column_kernel(x, y, terms, n, stride, BLOCK: tl.constexpr):
    """y[i] = R(sum_t x[t * stride + i]), t < terms, i < n."""
    OUT: tl.constexpr = y.dtype.element_ty
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = i < n
    total = tl.zeros([BLOCK], tl.float64)
    lost = tl.zeros([BLOCK], tl.float64)
    for t in range(terms):
        d = (
            tl.load(x + tl.cast(t, tl.int64) * stride + i, mask=here, other=0.0)
            .to(tl.float32)
            .to(tl.float64)
        )
        total, rest = two_sum(total, d)
        lost += tl.abs(rest)
    result, sure = certain(total, lost, OUT)
    tl.store(y + i, result, mask=here)
    number = tl.arange(0, BLOCK)
    open_ = tl.min(tl.where(here & ~sure, number, BLOCK), 0)
    while open_ < BLOCK:
        at = tl.program_id(0).to(tl.int64) * BLOCK + open_
        tl.store(y + at, row_again(x + at, stride, terms, 0.0, OUT, "sum"))
        open_ = tl.min(tl.where(here & ~sure & (number > open_), number, BLOCK), 0)


@triton.jit
def join_kernel(y, e, out, left, parts, n, BLOCK: tl.constexpr):
    """out[i] = R(sum of y[p, i]), each wrong by at most e[p, i]; left[i]: that leaves it open."""
    OUT: tl.constexpr = out.dtype.element_ty
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = i < n
    total = tl.zeros([BLOCK], tl.float64)
    lost = tl.zeros([BLOCK], tl.float64)
    for p in range(parts):
        at = tl.cast(p, tl.int64) * n + i
        d = tl.load(y + at, mask=here, other=0.0)
        total, rest = two_sum(total, d)
        lost += tl.load(e + at, mask=here, other=0.0) * SLACK + tl.abs(rest)
    result, sure = certain(total, lost, OUT)
    tl.store(out + i, result, mask=here)
    tl.store(left + i, ~sure, mask=here)
