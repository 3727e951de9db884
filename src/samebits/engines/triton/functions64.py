"""Functions that work in fp64 and round once: the bits of `samebits.contract.functions64`, `.trig`.

They are what a GPU needs besides `functions` to keep the portable contracts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.contract import functions as exact
from samebits.contract import functions64, trig
from samebits.engines.triton.functions import (
    _ERFCX_64,
    _EXPM1_64,
    _LN2_64,
    _LOG2E_64,
    _ROUNDING,
    _ROUNDING_64,
    _polynomial64,
    chips_nan,
    clamp,
    exp64,
    polynomial,
    power_of_two,
    rounded_word,
)

_EXP2 = tl.constexpr([float.fromhex(c) for c in exact._EXP2])
_ERF_64 = tl.constexpr(functions64._ERF[::-1])
_SIN_64 = tl.constexpr(trig._SIN[::-1])
_COS_64 = tl.constexpr(trig._COS[::-1])
_TWO_OVER_PI_64 = tl.constexpr(float.fromhex("0x1.45f306dc9c883p-1"))
_HALF_PI_64 = tl.constexpr(functions64.PI / 2)
_HALF_PI_LOW_64 = tl.constexpr(float.fromhex("0x1.1a62633145c07p-54"))
_PI_129 = tl.constexpr(functions64.PI * 2.0**-129)
_TWO_64 = tl.constexpr(2.0**64)


def _signed_words(bits: int, count: int) -> list[int]:
    """The upper `count` words of 64 bits of a number of 64 * 5 bits, behind one of zeros."""
    words = [0] + [(bits >> 64 * i) % 2**64 for i in range(4, -1, -1)]
    return [w - 2**64 if w >= 2**63 else w for w in words[:count]]


#: Enough of 2 / pi for every fp32 exponent.
_TWO_OVER_PI_BITS = tl.constexpr(_signed_words(trig._TWO_OVER_PI, 5))


@triton.jit
def with_sign(y, x):
    """|y| with the sign of x; the chip's NaN where y is NaN."""
    word = (y.to(tl.int32, bitcast=True) & 0x7FFFFFFF) | (
        x.to(tl.int32, bitcast=True) & -0x80000000
    )
    return tl.where(y == y, word.to(tl.float32, bitcast=True), chips_nan(y))


@triton.jit
def exp2(x):
    """2^x. Subnormal results are rounded once; x < -150 gives +0, x >= 128 gives Inf."""
    x = clamp(x, -160.0, 130.0)
    z = x + _ROUNDING
    whole = rounded_word(z)
    half = whole >> 1
    y = polynomial(x - (z - _ROUNDING), _EXP2, 7)
    return y * power_of_two(half) * power_of_two(whole - half)


@triton.jit
def _expm1_64(x):
    """e^x - 1 in fp64, accurate for small x."""
    z = x * _LOG2E_64 + _ROUNDING_64
    n = z - _ROUNDING_64
    r = tl.fma(n, tl.full(x.shape, -_LN2_64, tl.float64), x)
    y = tl.fma(_polynomial64(r, _EXPM1_64, 7), r * r, r)
    s = ((z.to(tl.int64, bitcast=True) << 52) + (1023 << 52)).to(tl.float64, bitcast=True)
    return tl.fma(y, s, s - 1.0)


@triton.jit
def expm1(x):
    """e^x - 1."""
    return tl.where(x == 0, x, _expm1_64(clamp(x, -40.0, 90.0).to(tl.float64)).to(tl.float32))


@triton.jit
def tanh(x):
    """Hyperbolic tangent."""
    v = clamp(tl.abs(x), 0.0, 20.0).to(tl.float64)
    e = _expm1_64(v + v)
    return with_sign((e / (e + 2.0)).to(tl.float32), x)


@triton.jit
def erf(x):
    """Error function."""
    a = clamp(tl.abs(x), 0.0, 4.0)
    v = a.to(tl.float64)
    z = v * v
    small = (v * _polynomial64(z, _ERF_64, 9)).to(tl.float32)
    tail = exp64(-z) * _polynomial64((v - 3.0) / (v + 3.0), _ERFCX_64, 13)
    return with_sign(tl.where(a <= 1.0, small, (1.0 - tail).to(tl.float32)), x)


@triton.jit
def rsqrt(x):
    """1 / sqrt(x), two IEEE operations."""
    return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), tl.sqrt_rn(x))


@triton.jit
def reciprocal(x):
    """1 / x."""
    return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), x)


# ---- sine and cosine ----------------------------------------------------------------------------


@triton.jit
def _word_at(index, NEXT: tl.constexpr):
    """Word index + NEXT of 2 / pi, for index 0, 1 or 2."""
    far = tl.where(index == 1, _TWO_OVER_PI_BITS[NEXT + 1], _TWO_OVER_PI_BITS[NEXT + 2])
    return tl.where(index == 0, _TWO_OVER_PI_BITS[NEXT], far).to(tl.uint64, bitcast=True)


@triton.jit
def _window(high, low, shift):
    """The 64 bits from bit `shift` (0 ... 63) on of two words."""
    rest = low >> ((64 - shift) & 63)
    return (high << shift) | tl.where(shift == 0, rest & 0, rest)


@triton.jit
def _reduce_large(a):
    """Payne and Hanek for finite a >= 2^17: a = turns pi/2 + high + low."""
    word = a.to(tl.int32, bitcast=True)
    start = 62 + (word >> 23) - 150
    index = tl.minimum(tl.maximum(start >> 6, 0), 2).to(tl.int64)
    shift = (start & 63).to(tl.uint64)
    first, second, third = _word_at(index, 0), _word_at(index, 1), _word_at(index, 2)
    above, below = _window(first, second, shift), _window(second, third, shift)
    m = ((word & 0x7FFFFF) | 0x800000).to(tl.uint64)
    low = m * below
    high = tl.umulhi(m, below) + m * above
    f_high = (high << 2) | (low >> 62)
    f_low = low << 2
    fraction = f_high.to(tl.int64, bitcast=True).to(tl.float64) * _TWO_64 + f_low.to(tl.float64)
    r = fraction * _PI_129
    turns = (high >> 62).to(tl.int32) + (f_high >> 63).to(tl.int32)
    r_high = r.to(tl.float32)
    return r_high, (r - r_high.to(tl.float64)).to(tl.float32), turns


@triton.jit
def _reduce_quadrant(a):
    """a = q pi/2 + r with |r| <= pi/4, for a >= 0; Inf and NaN count as 0."""
    fast = a < 131072.0
    x = tl.where(fast, a, 0.0).to(tl.float64)
    z = x * _TWO_OVER_PI_64 + _ROUNDING_64
    n = z - _ROUNDING_64
    r = tl.fma(n, tl.full(x.shape, -_HALF_PI_64, tl.float64), x)
    r = tl.fma(n, tl.full(x.shape, -_HALF_PI_LOW_64, tl.float64), r)
    q = n.to(tl.int32)
    large = ~fast & (a < float("inf"))
    if tl.max(large.to(tl.int32), axis=0) > 0:
        high, low, turns = _reduce_large(a)
        r = tl.where(large, (r + high.to(tl.float64)) + low.to(tl.float64), r)
        q = tl.where(large, turns, q)
    return r, q


@triton.jit
def _circular(x, QUARTERS: tl.constexpr):
    """sin(|x| + QUARTERS pi / 2); the chip's NaN for Inf and NaN."""
    r, q = _reduce_quadrant(tl.abs(x))
    z = r * r
    q += QUARTERS
    cosine = _polynomial64(z, _COS_64, 6).to(tl.float32)
    sine = (r * _polynomial64(z, _SIN_64, 5)).to(tl.float32)
    y = tl.where((q & 1) != 0, cosine, sine)
    y = tl.where((q & 2) != 0, y * -1.0, y)  # a minus is a subtraction from +0 here
    return tl.where(tl.abs(x) < float("inf"), y, chips_nan(x))


@triton.jit
def sin(x):
    """Sine, accurate for every finite argument."""
    y = _circular(x, 0)
    negative = (x.to(tl.int32, bitcast=True) < 0) & (y == y)
    return tl.where(negative, y * -1.0, y)


@triton.jit
def cos(x):
    """Cosine, accurate for every finite argument."""
    return _circular(x, 1)
