"""Elementary functions for kernels: the bits of `samebits.contract.functions` and `.activations`.

f(x)[i] depends on x[i] alone. Every fma is written, divisions are IEEE, and kernels are started
without contraction, so a GPU computes what the CPU engine and the NumPy definitions compute.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.contract import activations, functions64
from samebits.contract import functions as exact

_EXPM1 = tl.constexpr([float.fromhex(c) for c in exact._EXPM1])
_LOG = tl.constexpr([float.fromhex(c) for c in exact._LOG])
_LOG2E = tl.constexpr(float(exact.LOG2E))
_LN2_HIGH = tl.constexpr(float(exact.LN2_HIGH))
_LN2_LOW = tl.constexpr(float(exact.LN2_LOW))
#: 1.5 * 2^23: adding and subtracting it rounds |x| < 2^22 to the nearest integer, ties to even. The
#: sum's word is _ROUNDING_WORD plus that integer.
_ROUNDING = tl.constexpr(12582912.0)
_ROUNDING_WORD = tl.constexpr(0x4B400000)
_ALL = tl.constexpr(tl.PropagateNan.ALL)
#: The same for fp64: 1.5 * 2^52.
_ROUNDING_64 = tl.constexpr(6755399441055744.0)
_EXPM1_64 = tl.constexpr(functions64._EXPM1[::-1])
_ERFCX_64 = tl.constexpr(functions64._ERFCX[::-1])
_LOG2E_64 = tl.constexpr(functions64.LOG2E)
_LN2_64 = tl.constexpr(functions64.LN2)
_GELU_LINEAR = tl.constexpr(2 * activations._GELU0)
_GELU_CUBIC = tl.constexpr(2 * activations._GELU0 * activations._GELU1)
_SQRT_HALF_64 = tl.constexpr(float.fromhex("0x1.6a09e667f3bcdp-1"))
_SQRT_HALF = tl.constexpr(0x3F3504F3)


@triton.jit
def opaque(x):
    """x of 16 or 32 bits; the compiler does not look behind it.

    Triton lays the operands of a 16-bit product out by the narrowest tensor that they were loaded
    from: behind fp8 keys or a boolean mask, mma.sync would take other elements together than the
    contract's blocks of 16 (`launch` refuses such a kernel).
    """
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False,
        pack=32 // x.dtype.primitive_bitwidth,
    )  # fmt: skip


@triton.jit
def reciprocal(x):
    """1 / x in fp32 by one instruction, for 2^-126 <= x < 2^126; off by one unit at most."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def at_least(x, low):
    """The larger of `x` and `low`; a NaN stays."""
    return tl.maximum(x, low, propagate_nan=_ALL)


@triton.jit
def clamp(x, low, high):
    """`x` kept inside [low, high]; a NaN stays."""
    return tl.minimum(at_least(x, low), high, propagate_nan=_ALL)


@triton.jit
def rounded_word(z):
    """The integer n in z = n + 1.5 * 2^23, cheaper than a conversion. |n| < 2^22; not for a NaN."""
    return z.to(tl.int32, bitcast=True) - _ROUNDING_WORD


@triton.jit
def chips_nan(x):
    """The fp32 NaN that the chip computes, like x; the compiler's constant is another."""
    return tl.full(x.shape, 0x7FFFFFFF, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def polynomial(x, C: tl.constexpr, TERMS: tl.constexpr):
    """Horner's rule in fma, the highest of TERMS coefficients first."""
    y = tl.full(x.shape, C[0], tl.float32)
    for i in tl.static_range(1, TERMS):
        y = tl.fma(y, x, tl.full(x.shape, C[i], tl.float32))
    return y


@triton.jit
def power_of_two(n):
    """2^n for an int32 n in -126 ... 127."""
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _expm1_reduced(x, n):
    """e^r - 1 with r = x - n ln 2."""
    r = tl.fma(n, tl.full(x.shape, -_LN2_LOW, tl.float32),
               tl.fma(n, tl.full(x.shape, -_LN2_HIGH, tl.float32), x))  # fmt: skip
    return tl.fma(polynomial(r, _EXPM1, 5), r * r, r)


@triton.jit
def exp(x):
    """e^x in fp32: x = n ln 2 + r by Cody and Waite's two constants."""
    x = clamp(x, -110.0, 90.0)
    z = x * _LOG2E + _ROUNDING
    whole = rounded_word(z)
    half = whole >> 1
    y = _expm1_reduced(x, z - _ROUNDING) + 1.0
    return y * power_of_two(half) * power_of_two(whole - half)


@triton.jit
def exp_of_negative(x):
    """`exp_flush` of x <= 0 or NaN: e^x, +0 from 2^-127 down."""
    x = at_least(x, -88.0)
    z = tl.fma(x, tl.full(x.shape, _LOG2E, tl.float32), tl.full(x.shape, _ROUNDING, tl.float32))
    y = _expm1_reduced(x, z - _ROUNDING) + 1.0
    return y * power_of_two(z.to(tl.int32, bitcast=True))  # the shift drops _ROUNDING_WORD


@triton.jit
def exp_flush(x):
    """e^x in fp32 with fewer steps than `exp`: +0 from 2^-127 down, Inf from 2^128 up."""
    return exp_of_negative(tl.minimum(x, 89.0, propagate_nan=_ALL))


@triton.jit
def _log_exponent(x):
    """The exponent that leaves a significand in [sqrt(1/2), sqrt(2))."""
    return (x.to(tl.int32, bitcast=True) - _SQRT_HALF) >> 23


@triton.jit
def _log_parts(f, n):
    """log(1 + f) + n ln 2 for f in [sqrt(1/2) - 1, sqrt(2) - 1]."""
    z = f * f
    t = tl.fma(polynomial(f, _LOG, 9) * f, z, n * _LN2_LOW)
    t = tl.fma(z, tl.full(f.shape, -0.5, tl.float32), t)
    return tl.fma(n, tl.full(f.shape, _LN2_HIGH, tl.float32), f + t)


@triton.jit
def _log_specials(x, pole, y):
    y = tl.where(x == float("inf"), float("inf"), tl.where(x == pole, float("-inf"), y))
    return tl.where(x >= pole, y, chips_nan(x))


@triton.jit
def log(x):
    """Natural logarithm in fp32, subnormals included. log(+-0) = -Inf, log(x < 0) = NaN."""
    tiny = x < 1.1754943508222875e-38
    v = tl.where(tiny, x * 16777216.0, x)
    n = _log_exponent(v)
    f = (v.to(tl.int32, bitcast=True) - (n << 23)).to(tl.float32, bitcast=True) - 1.0
    return _log_specials(x, 0.0, _log_parts(f, n.to(tl.float32) + tl.where(tiny, -24.0, 0.0)))


@triton.jit
def log1p(x):
    """log(1 + x) in fp32."""
    n = _log_exponent(x + 1.0)
    half = n >> 1
    s1 = power_of_two(-half)
    s2 = power_of_two(half - n)
    f = tl.fma(x * s1, s2, s1 * s2 - 1.0)
    return tl.where(x == 0, x, _log_specials(x, -1.0, _log_parts(f, n.to(tl.float32))))


@triton.jit
def _times_sigmoid(v, x):
    """v / (1 + e^-x) = v / (1 + (p + 2^-n)) 2^-n with e^-x = (1 + p) 2^n."""
    t = clamp(-x, -60.0, 110.0)
    z = t * _LOG2E + _ROUNDING
    p = _expm1_reduced(t, z - _ROUNDING)
    down = -rounded_word(z)
    half = down >> 1
    s1 = power_of_two(half)
    s2 = power_of_two(down - half)
    return tl.div_rn(v, 1.0 + (p + s1 * s2)) * s1 * s2


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x) in fp32."""
    return _times_sigmoid(tl.full(x.shape, 1.0, tl.float32), x)


@triton.jit
def silu(x):
    """x / (1 + e^-x) in fp32."""
    y = _times_sigmoid(at_least(x, -110.0), x)
    return tl.where(x == float("-inf"), chips_nan(x), y)


# ---- fp64 inside, rounded once ------------------------------------------------------------------


@triton.jit
def _fma64(a, b, c):
    return tl.fma(a, b, tl.full(a.shape, c, tl.float64))


@triton.jit
def _polynomial64(x, C: tl.constexpr, TERMS: tl.constexpr):
    y = tl.full(x.shape, C[0], tl.float64)
    for i in tl.static_range(1, TERMS):
        y = _fma64(y, x, C[i])
    return y


@triton.jit
def exp64(x):
    """e^x in fp64, |x| < 700 or NaN."""
    z = x * _LOG2E_64 + _ROUNDING_64
    n = z - _ROUNDING_64
    r = tl.fma(n, tl.full(x.shape, -_LN2_64, tl.float64), x)
    y = tl.fma(_polynomial64(r, _EXPM1_64, 7), r * r, r) + 1.0
    word = ((z.to(tl.int64, bitcast=True) << 52) + (1023 << 52)).to(tl.float64, bitcast=True)
    return y * word


@triton.jit
def gelu_tanh(x):
    """x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    v = clamp(x, -12.0, 12.0).to(tl.float64)
    e = exp64(-(v * _fma64(v * v, tl.full(v.shape, _GELU_CUBIC, tl.float64), _GELU_LINEAR)))
    y = (at_least(x, -12.0).to(tl.float64) / (1.0 + e)).to(tl.float32)
    return tl.where(x == float("-inf"), chips_nan(x), y)


@triton.jit
def gelu(x):
    """x Phi(x)."""
    v = clamp(tl.abs(x), 0.0, 15.0).to(tl.float64)
    z = v * _SQRT_HALF_64
    tail = exp64(v * v * -0.5) * 0.5 * _polynomial64((z - 3.0) / (z + 3.0), _ERFCX_64, 13)
    below = x < 0
    cdf = tl.fma(
        tl.where(below, 1.0, -1.0).to(tl.float64), tail, tl.where(below, 0.0, 1.0).to(tl.float64)
    )
    y = (at_least(x, -15.0).to(tl.float64) * cdf).to(tl.float32)
    return tl.where(x == float("-inf"), chips_nan(x), y)
