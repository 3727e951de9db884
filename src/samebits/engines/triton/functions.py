"""Elementary functions for kernels: the bits of `samebits.contract.functions` and `.activations`.

f(x)[i] depends on x[i] alone. Every fma is written, divisions are IEEE, and kernels are started
without contraction, so a GPU computes what the CPU engine and the NumPy definitions compute.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.contract import functions as exact

_EXPM1 = tl.constexpr([float.fromhex(c) for c in exact._EXPM1])
_LOG = tl.constexpr([float.fromhex(c) for c in exact._LOG])
_LOG2E = tl.constexpr(float(exact.LOG2E))
_LN2_HIGH = tl.constexpr(float(exact.LN2_HIGH))
_LN2_LOW = tl.constexpr(float(exact.LN2_LOW))
#: 1.5 * 2^23: adding and subtracting it rounds |x| < 2^22 to the nearest integer, ties to even.
_ROUNDING = tl.constexpr(12582912.0)
_SQRT_HALF = tl.constexpr(0x3F3504F3)


@triton.jit
def clamp(x, low, high):
    """`x` kept inside [low, high]; a NaN stays."""
    x = tl.where(x < low, low, x)
    return tl.where(x > high, high, x)


@triton.jit
def nearest(x):
    """The nearest integer of |x| < 2^22, ties to even; a NaN stays."""
    return (x + _ROUNDING) - _ROUNDING


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
def exp(x):
    """e^x in fp32: x = n ln 2 + r by Cody and Waite's two constants."""
    x = clamp(x, -110.0, 90.0)
    n = nearest(x * _LOG2E)
    r = tl.fma(n, tl.full(x.shape, -_LN2_LOW, tl.float32),
               tl.fma(n, tl.full(x.shape, -_LN2_HIGH, tl.float32), x))  # fmt: skip
    p = tl.fma(polynomial(r, _EXPM1, 5), r * r, r)
    half = n.to(tl.int32) >> 1
    return (p + 1.0) * power_of_two(half) * power_of_two(n.to(tl.int32) - half)


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
    return tl.where(x >= pole, y, float("nan"))


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
    n = nearest(t * _LOG2E)
    r = tl.fma(n, tl.full(x.shape, -_LN2_LOW, tl.float32),
               tl.fma(n, tl.full(x.shape, -_LN2_HIGH, tl.float32), t))  # fmt: skip
    p = tl.fma(polynomial(r, _EXPM1, 5), r * r, r)
    down = -n.to(tl.int32)
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
    y = _times_sigmoid(tl.where(x < -110.0, -110.0, x), x)
    return tl.where(x == float("-inf"), float("nan"), y)
