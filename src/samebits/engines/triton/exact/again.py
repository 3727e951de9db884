"""The second step: one sum whose rounding the first step left open."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton import functions
from samebits.engines.triton.exact.numbers import (
    SLACK,
    UNIT,
    add_pairs,
    certain,
    deposit,
    power_of_two,
    rounded_digits,
    split,
    two_sum,
)

#: Terms at a time: of a sum in two numbers, and of one without rounding.
_MANY = tl.constexpr(512)
_BLOCK = tl.constexpr(16)


@triton.jit
def unit_exponent(smallest, FRACTION: tl.constexpr):
    """e so that 2^e divides numbers of at least this magnitude (fp32; Inf where there is none)."""
    field = (smallest.to(tl.int32, bitcast=True) >> 23) & 255
    return tl.maximum(field, 1) - 127 - FRACTION


@triton.jit
def _settled(total, rest, size, low, count, OUT: tl.constexpr):
    """R(sum of total + rest), and whether that is certain.

    Args:
        total, rest: [B] fp64, sums in two numbers, of which only `rest` was rounded.
        size: [B] fp64, sums of magnitudes.
        low: e where every term is a multiple of 2^e.
        count: terms.
    """
    y, rest = tl.reduce((total, rest), 0, add_pairs)
    size = tl.sum(size, 0)
    # Multiples of one unit below 2^53 of it: nothing was rounded.
    fits = size * SLACK < power_of_two(tl.maximum(tl.minimum(low + 53, 1000), -1000))
    y = tl.where(tl.abs(y) < float("inf"), y + rest, y)
    steps = tl.cast(count + 64, tl.float64) * (UNIT * SLACK)
    # A rest is at most `steps * size`, and the rests went through as many roundings.
    e = tl.where(fits, 0.0, steps * steps * size)
    return certain(y, e, OUT)


@triton.jit
def product_again(x, w, step_x, step_w, k, term, OUT: tl.constexpr):
    """R(sum x[i * step_x] * w[i * step_w] + term), i < k; term: fp32.

    Products are exact in fp64, and added in two numbers; if that is not certain, without rounding.
    A sum in the middle between two results is certain only where nothing at all was rounded, so
    the unit that all terms are multiples of is looked for term by term.
    """
    IN: tl.constexpr = x.dtype.element_ty
    FRACTION: tl.constexpr = 23 if tl.float32 == IN else (7 if tl.bfloat16 == IN else 10)
    total = tl.zeros([_MANY], tl.float64)
    rest = tl.zeros([_MANY], tl.float64)
    size = tl.zeros([_MANY], tl.float64)
    low = tl.full([_MANY], 1000, tl.int32)
    lane = tl.arange(0, _MANY)
    total = tl.where(lane == 0, term.to(tl.float64), total)
    size = tl.abs(total)
    for start in range(0, k, _MANY):
        i = start + lane
        a = tl.load(x + i.to(tl.int64) * step_x, mask=i < k, other=0.0).to(tl.float32)
        b = tl.load(w + i.to(tl.int64) * step_w, mask=i < k, other=0.0).to(tl.float32)
        p = a.to(tl.float64) * b.to(tl.float64)
        total, gone = two_sum(total, p)
        rest += gone
        size += tl.abs(p)
        unit = unit_exponent(a, FRACTION) + unit_exponent(b, FRACTION)
        low = tl.minimum(low, tl.where((a == 0) | (b == 0), 1000, unit))
    least = tl.minimum(tl.min(low, 0), tl.where(term == 0, 1000, unit_exponent(term, 23)))
    result, sure = _settled(total, rest, size, least, k, OUT)
    if ~sure:
        digits = tl.zeros([_BLOCK, 64], tl.int64)
        for start in range(0, k, _BLOCK):
            i = start + tl.arange(0, _BLOCK)
            a = tl.load(x + i.to(tl.int64) * step_x, mask=i < k, other=0.0).to(tl.float32)
            b = tl.load(w + i.to(tl.int64) * step_w, mask=i < k, other=0.0).to(tl.float32)
            sa, ea = split(a)
            sb, eb = split(b)
            digits = deposit(digits, sa * sb, ea + eb)
        first = tl.arange(0, _BLOCK) == 0
        st, et = split(tl.where(first, term, 0.0))
        digits = deposit(digits, st, et)
        result = rounded_digits(tl.sum(digits, 0), OUT).to(OUT)
    return result


@triton.jit
def term_of(v, inside, shift, KIND: tl.constexpr):
    """fp32 terms of a row's sum: v, exp(v - shift), or what is squared: v, v - shift."""
    if KIND == "exp":
        v = functions.exp(v - shift)
    elif KIND == "deviations":
        v = v - shift
    return tl.where(inside, v, 0.0)


@triton.jit
def row_again(x, step, n, shift, OUT: tl.constexpr, KIND: tl.constexpr):
    """R(sum of the terms of x[i * step]), i < n; "squares" and "deviations" are squared."""
    IN: tl.constexpr = x.dtype.element_ty
    SQUARED: tl.constexpr = KIND == "squares" or KIND == "deviations"
    WIDE: tl.constexpr = tl.float32 == IN or KIND == "exp" or KIND == "deviations"
    FRACTION: tl.constexpr = 23 if WIDE else (7 if tl.bfloat16 == IN else 10)
    total = tl.zeros([_MANY], tl.float64)
    rest = tl.zeros([_MANY], tl.float64)
    size = tl.zeros([_MANY], tl.float64)
    low = tl.full([_MANY], float("inf"), tl.float32)
    for start in range(0, n, _MANY):
        i = start + tl.arange(0, _MANY)
        v = tl.load(x + i.to(tl.int64) * step, mask=i < n, other=0.0).to(tl.float32)
        a = term_of(v, i < n, shift, KIND)
        p = a.to(tl.float64)
        p = p * p if SQUARED else p
        total, gone = two_sum(total, p)
        rest += gone
        size += tl.abs(p)
        low = tl.minimum(low, tl.where(a == 0, float("inf"), tl.abs(a)))
    e = unit_exponent(tl.min(low, 0), FRACTION) * (2 if SQUARED else 1)
    result, sure = _settled(total, rest, size, e, n, OUT)
    if ~sure:
        digits = tl.zeros([_BLOCK, 64], tl.int64)
        for start in range(0, n, _BLOCK):
            i = start + tl.arange(0, _BLOCK)
            v = tl.load(x + i.to(tl.int64) * step, mask=i < n, other=0.0).to(tl.float32)
            sv, ev = split(term_of(v, i < n, shift, KIND))
            digits = deposit(digits, sv * sv, ev + ev) if SQUARED else deposit(digits, sv, ev)
        result = rounded_digits(tl.sum(digits, 0), OUT).to(OUT)
    return result
