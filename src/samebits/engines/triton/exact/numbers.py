"""fp64 values, one rounding, and sums without any: what the kernels of this package share."""

from __future__ import annotations

import triton
import triton.language as tl

#: Digits of 16 bits of a number without rounding, and the weight of the lowest: products of fp32
#: numbers are between 2^-298 and 2^256, and 2^40 of them fit.
DIGITS = tl.constexpr(40)
_LOW = tl.constexpr(-298)
#: For the roundings of the bounds themselves.
SLACK = tl.constexpr(1.01)
UNIT = tl.constexpr(2.0**-53)


@triton.jit
def round_to(y, OUT: tl.constexpr):
    """fp64 numbers rounded once to a storage type; every NaN is the canonical one.

    Rounding to fp32 is the hardware's. 16 bits are reached by way of fp32 rounded to odd (Boldo and
    Melquiond, 2008): the word is moved toward zero where it was rounded away, and its last bit set.
    """
    near = y.to(tl.float32)
    word = near.to(tl.int32, bitcast=True)
    if tl.float32 == OUT:
        result = tl.where(near == near, word, 0x7FC00000).to(tl.float32, bitcast=True)
    else:
        back = near.to(tl.float64)
        inexact = (back != y) & (y == y)
        word = tl.where(inexact, (word - (tl.abs(back) > tl.abs(y)).to(tl.int32)) | 1, word)
        small = word.to(tl.float32, bitcast=True).to(OUT).to(tl.int16, bitcast=True)
        nan: tl.constexpr = 0x7FC0 if tl.bfloat16 == OUT else 0x7E00
        result = tl.where(near == near, small, nan).to(tl.int16).to(OUT, bitcast=True)
    return result


@triton.jit
def certain(y, e, OUT: tl.constexpr):
    """R(y), and whether every number within e of y rounds to it. Inf and NaN are what they are."""
    decided = (e == 0) | ~(tl.abs(y) < float("inf"))
    e = tl.where(decided, 0.0, e * SLACK + tl.abs(y) * (2.0 * UNIT))
    low = round_to(y - e, OUT)
    high = round_to(y + e, OUT)
    same = _word(low, OUT) == _word(high, OUT)
    return high, same


@triton.jit
def _word(x, OUT: tl.constexpr):
    return x.to(tl.int32 if tl.float32 == OUT else tl.int16, bitcast=True)


@triton.jit
def two_sum(a, b):
    """a + b rounded, and what that took away: exact (Knuth)."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


@triton.jit
def add_pairs(a, a_rest, b, b_rest):
    """Sums that are held in two numbers; only the rests are rounded."""
    s, rest = two_sum(a, b)
    return s, (a_rest + b_rest) + rest


@triton.jit
def power_of_two(e):
    """2^e in fp64, -1022 <= e <= 1023."""
    return ((e.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def split(x):
    """Finite fp32 numbers as integers s * 2^e, |s| < 2^24."""
    word = x.to(tl.int32, bitcast=True)
    field = (word >> 23) & 255
    s = (word & 0x7FFFFF) | tl.where(field == 0, 0, 0x800000)
    return tl.where(word < 0, -s, s).to(tl.int64), tl.maximum(field, 1) - 150


@triton.jit
def deposit(digits, s, e):
    """Adds s * 2^e to sums without rounding.

    Args:
        digits: [B, 64] int64: sum of digits[:, i] * 2^(16 i - 298), carries postponed. An addition
            is below 2^32, so 2^30 of them fit.
        s: [B] int64, |s| < 2^48; e: [B], at least -298 where s is not 0.
    """
    at = tl.maximum(e - _LOW, 0)
    place, shift = at >> 4, (at & 15).to(tl.int64)
    size = tl.abs(s)
    lane = tl.arange(0, 64)[None, :]
    for part in tl.static_range(3):
        piece = ((size >> (16 * part)) & 0xFFFF) << shift
        piece = tl.where(s < 0, -piece, piece)
        digits += tl.where(lane == (place + part)[:, None], piece[:, None], 0)
    return digits


@triton.jit
def rounded_digits(digits, OUT: tl.constexpr):
    """[64] int64 digits as one number, rounded once to nearest even: fp32 that fits OUT."""
    lane = tl.arange(0, 64)
    carry = tl.sum(digits, 0) * 0
    for i in range(DIGITS):  # the sign first
        carry = (tl.sum(tl.where(lane == i, digits, 0), 0) + carry) >> 16
    negative = carry < 0
    digits = tl.where(negative, -digits, digits)
    carry = carry * 0
    head, before, rest, top = carry, carry, carry, carry - 1
    below = carry
    for i in range(DIGITS):
        t = tl.sum(tl.where(lane == i, digits, 0), 0) + carry
        digit = t & 0xFFFF
        carry = t >> 16
        # The digit and the three below it; `below`: whether anything is left under those.
        here = (digit << 48) | before
        head = tl.where(digit != 0, here, head)
        rest = tl.where(digit != 0, below, rest)
        top = tl.where(digit != 0, i, top)
        below = below | (before & 0xFFFF)
        before = (digit << 32) | (before >> 16)
    # head has 48 to 63 bits under the sign: the leading digit is brought to its highest bit.
    lead = carry * 0
    for step in tl.static_range(4):
        by = 8 >> step
        small = (head >> (64 - by)) & ((1 << by) - 1)
        grow = small == 0
        head = tl.where(grow, head << by, head)
        lead = tl.where(grow, lead + by, lead)
    exponent = 16 * top + 15 - lead + _LOW
    fraction = 23 if tl.float32 == OUT else (7 if tl.bfloat16 == OUT else 10)
    lowest = -14 if tl.float16 == OUT else -126
    last = tl.maximum(exponent, lowest) - fraction
    drop = last - (exponent - 63)  # at least 40
    by = tl.minimum(drop, 63)
    kept = tl.where(drop < 64, (head >> by) & ((1 << (64 - by)) - 1), 0)
    low = head & ((1 << by) - 1)
    half = 1 << (by - 1)
    halfway = (low & half) != 0
    more = ((low & (half - 1)) != 0) | (rest != 0)
    up = halfway & (more | ((kept & 1) != 0))
    # A last place above the leading bit: at half of it (drop = 64) what is more than a half counts.
    beyond = (drop == 64) & (((head << 1) != 0) | (rest != 0))
    kept += tl.where(drop < 64, up, beyond).to(tl.int64)
    value = kept.to(tl.float64) * power_of_two(last)
    y = tl.where(top < 0, 0.0, value).to(tl.float32)
    if tl.float16 == OUT:
        y = tl.where(y > 65504.0, float("inf"), y)
    if tl.bfloat16 == OUT:
        y = tl.where(y > 3.3895313892515355e38, float("inf"), y)
    return tl.where(negative, y * -1.0, y)  # -y would be 0 - y, which has no -0
