"""The second step: one sum whose rounding the first step left open."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton import functions
from samebits.engines.triton.exact.numbers import (
    SLACK,
    deposit,
    power_of_two,
    round_to,
    rounded_digits,
    split,
)

_BLOCK = tl.constexpr(64)


@triton.jit
def unit_exponent(smallest, FRACTION: tl.constexpr):
    """e so that 2^e divides numbers of at least this magnitude (fp32; Inf where there is none)."""
    field = (smallest.to(tl.int32, bitcast=True) >> 23) & 255
    return tl.maximum(field, 1) - 127 - FRACTION


@triton.jit
def product_again(x, w, step_x, step_w, k, term, OUT: tl.constexpr):
    """R(sum x[i * step_x] * w[i * step_w] + term), i < k; term: fp32.

    If every partial sum is a multiple of one unit with at most 53 bits, fp64 had it exactly. If
    not, the terms are added without rounding.
    """
    IN: tl.constexpr = x.dtype.element_ty
    total = tl.zeros([_BLOCK], tl.float64)
    size = tl.zeros([_BLOCK], tl.float64)
    low_x = tl.full([_BLOCK], float("inf"), tl.float32)
    low_w = tl.full([_BLOCK], float("inf"), tl.float32)
    for start in range(0, k, _BLOCK):
        i = start + tl.arange(0, _BLOCK)
        a = tl.load(x + i.to(tl.int64) * step_x, mask=i < k, other=0.0).to(tl.float32)
        b = tl.load(w + i.to(tl.int64) * step_w, mask=i < k, other=0.0).to(tl.float32)
        p = a.to(tl.float64) * b.to(tl.float64)
        total += p
        size += tl.abs(p)
        low_x = tl.minimum(low_x, tl.where(a == 0, float("inf"), tl.abs(a)))
        low_w = tl.minimum(low_w, tl.where(b == 0, float("inf"), tl.abs(b)))
    y = tl.sum(total, 0) + term.to(tl.float64)
    FRACTION: tl.constexpr = 23 if tl.float32 == IN else (7 if tl.bfloat16 == IN else 10)
    e = unit_exponent(tl.min(low_x, 0), FRACTION) + unit_exponent(tl.min(low_w, 0), FRACTION)
    field = (term.to(tl.int32, bitcast=True) >> 23) & 255
    e = tl.where(term == 0, e, tl.minimum(e, tl.maximum(field, 1) - 150))
    bound = (tl.sum(size, 0) + tl.abs(term).to(tl.float64)) * SLACK
    finite = tl.abs(y) < float("inf")
    fits = (bound < power_of_two(tl.minimum(e + 53, 1000))) | (y != y) | ~finite
    result = round_to(y, OUT)
    if ~fits:
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
    total = tl.zeros([_BLOCK], tl.float64)
    size = tl.zeros([_BLOCK], tl.float64)
    low = tl.full([_BLOCK], float("inf"), tl.float32)
    for start in range(0, n, _BLOCK):
        i = start + tl.arange(0, _BLOCK)
        v = tl.load(x + i.to(tl.int64) * step, mask=i < n, other=0.0).to(tl.float32)
        a = term_of(v, i < n, shift, KIND)
        p = a.to(tl.float64)
        p = p * p if SQUARED else p
        total += p
        size += tl.abs(p)
        low = tl.minimum(low, tl.where(a == 0, float("inf"), tl.abs(a)))
    y = tl.sum(total, 0)
    e = unit_exponent(tl.min(low, 0), FRACTION) * (2 if SQUARED else 1)
    finite = tl.abs(y) < float("inf")
    fits = (tl.sum(size, 0) * SLACK < power_of_two(tl.minimum(e + 53, 1000))) | (y != y) | ~finite
    result = round_to(y, OUT)
    if ~fits:
        digits = tl.zeros([_BLOCK, 64], tl.int64)
        for start in range(0, n, _BLOCK):
            i = start + tl.arange(0, _BLOCK)
            v = tl.load(x + i.to(tl.int64) * step, mask=i < n, other=0.0).to(tl.float32)
            sv, ev = split(term_of(v, i < n, shift, KIND))
            digits = deposit(digits, sv * sv, ev + ev) if SQUARED else deposit(digits, sv, ev)
        result = rounded_digits(tl.sum(digits, 0), OUT).to(OUT)
    return result
