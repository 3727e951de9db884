"""Elementary functions that work in fp64 and round once to fp32: exact twins in NumPy.

Operation for operation what csrc/math64.hpp and csrc/trig.hpp do. NumPy's fp64 arithmetic is IEEE;
only the fused multiply-add is missing and is emulated exactly (`fma64`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from samebits.contract.functions import clamp, log
from samebits.contract.numerics import (
    CANONICAL_NAN,
    F32,
    F64,
    Array,
    _add_to_odd,
    canonical,
    mul32,
    sub32,
)

I64 = npt.NDArray[np.int64]
MAX = float.fromhex("0x1.fffffep127")
LN2, LOG2E = float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.71547652b82fep+0")
PI = float.fromhex("0x1.921fb54442d18p+1")
_INF = np.float32(np.inf)


def _constants(*texts: str) -> list[float]:
    return [float.fromhex(t) for t in texts]


# ---- fp64 arithmetic ---------------------------------------------------------------------------


def fma64(a: Array | float, b: Array | float, c: Array | float) -> F64:
    """``a * b + c`` in fp64 with one rounding, away from overflow and underflow.

    Dekker's product and Knuth's sums give the exact result as three parts, of which the lower two
    are added with rounding to odd (Boldo and Melquiond 2008, algorithm "Fma emulation").
    """
    a, b, c = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (a, b, c)))
    with np.errstate(all="ignore"):
        high = a * b
        a1, a2 = _halves(a)
        b1, b2 = _halves(b)
        low = ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2
        t1, t2 = _two_sum(c, low)
        s1, s2 = _two_sum(high, t1)
        exact = s1 + _add_to_odd(t2, s2)
        plain = high + c
        return np.where(np.isfinite(exact) & (exact != 0), exact, plain)


def _halves(x: F64) -> tuple[F64, F64]:
    t = x * 134217729.0  # 2^27 + 1, Veltkamp's splitting
    high = t - (t - x)
    return high, x - high


def _two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def widen(x: Array) -> F64:
    """fp32 as fp64, exactly."""
    return np.asarray(x, np.float32).astype(np.float64)


def narrow(x: F64) -> F32:
    """fp64 rounded to fp32, canonical NaN."""
    return canonical(x)


def to_int(n: F64) -> I64:
    """Whole numbers as integers (0 for NaN, whose result is NaN anyway)."""
    return np.where(np.isfinite(n), n, 0).astype(np.int64)


def pow2(n: I64) -> F64:
    """2^n as a normal fp64 number."""
    return np.ldexp(1.0, np.clip(n, -1022, 1023))


def poly(x: F64, c: Sequence[float]) -> F64:
    """c[0] + c[1] x + ... by Horner's rule in fma."""
    y = np.full_like(x, c[-1])
    for k in reversed(c[:-1]):
        y = fma64(y, x, k)
    return y


def with_sign(magnitude: Array, x: Array) -> F32:
    """|magnitude| with the sign of x."""
    return canonical(np.copysign(magnitude, np.asarray(x, np.float32)))


def neg_unless(keep: Array, x: Array) -> F32:
    """x where `keep` is set, else -x."""
    return np.where(keep, x, -np.asarray(x, np.float32))


# ---- exponentials ------------------------------------------------------------------------------

_EXPM1 = _constants(
    "0x1.0000000017164p-1", "0x1.5555557350b50p-3", "0x1.555554f374d47p-5", "0x1.1110b221053b1p-7",
    "0x1.6c1766c712966p-10", "0x1.a16f652f9f1bbp-13", "0x1.a0039e9a102a3p-16",
)  # fmt: skip


def _expm1_reduced(r: F64) -> F64:
    return fma64(poly(r, _EXPM1), r * r, r)


def exp64(x: F64) -> F64:
    """e^x in fp64 (relative error 2^-37), |x| < 700."""
    n = np.rint(x * LOG2E)
    return (_expm1_reduced(fma64(n, -LN2, x)) + 1.0) * pow2(to_int(n))


def expm1_64(x: F64) -> F64:
    """e^x - 1 in fp64, accurate for small x."""
    n = np.rint(x * LOG2E)
    s = pow2(to_int(n))
    return fma64(_expm1_reduced(fma64(n, -LN2, x)), s, s - 1.0)


def exp2_64(x: F64) -> F64:
    """2^x in fp64."""
    n = np.rint(x)
    return (_expm1_reduced((x - n) * LN2) + 1.0) * pow2(to_int(n))


def expm1(x: Array) -> F32:
    """e^x - 1."""
    x = np.asarray(x, np.float32)
    return np.where(x == 0, x, narrow(expm1_64(widen(clamp(x, -40.0, 90.0)))))


def sinh(x: Array) -> F32:
    """Hyperbolic sine."""
    e = expm1_64(widen(clamp(np.abs(x), 0.0, 91.0)))
    return with_sign(narrow((e + e / (e + 1.0)) * 0.5), x)


def cosh(x: Array) -> F32:
    """Hyperbolic cosine."""
    e = exp64(widen(clamp(np.abs(x), 0.0, 91.0)))
    return narrow((e + 1.0 / e) * 0.5)


def tanh(x: Array) -> F32:
    """Hyperbolic tangent."""
    v = widen(clamp(np.abs(x), 0.0, 20.0))
    e = expm1_64(v + v)
    return with_sign(narrow(e / (e + 2.0)), x)


# ---- logarithms --------------------------------------------------------------------------------

_LOG_RATIO = _constants(
    "0x1p+0", "0x1.555555564a25dp-2", "0x1.99999627b3fedp-3", "0x1.24944c2a289b7p-3",
    "0x1.c616c79c51955p-4", "0x1.9249f2703db83p-4",
)  # fmt: skip


def _log_ratio(s: F64) -> F64:
    return (s + s) * poly(s * s, _LOG_RATIO)


def _words(x: F32) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(x, np.float32).view(np.int32).reshape(np.shape(x))


def log_exponent(x: F32) -> npt.NDArray[np.int32]:
    """The exponent that leaves a significand in [sqrt(1/2), sqrt(2))."""
    exponent: npt.NDArray[np.int32] = (_words(x) - np.int32(0x3F3504F3)) >> 23
    return exponent


def _split_log(x: Array) -> tuple[F64, F64]:
    x = np.asarray(x, np.float32)
    tiny = x < np.float32(2.0**-126)
    v = np.where(tiny, mul32(x, np.float32(2.0**24)), x)
    n = log_exponent(v)
    m = widen((_words(v) - (n << 23)).view(np.float32))
    return (n + np.where(tiny, -24, 0)).astype(np.float64), _log_ratio((m - 1.0) / (m + 1.0))


def log2_64(x: Array) -> F64:
    """Binary logarithm of finite x > 0, in fp64."""
    n, fraction = _split_log(x)
    return fma64(fraction, LOG2E, n)


def log1p_64(a: F64) -> F64:
    """log(1 + a) in fp64, accurate for small a; 2^-50 < 1 + a < 2^150."""
    n = log_exponent(narrow((a + 1.0) * 2.0**-30)).astype(np.int64) + 30
    s = pow2(-n)
    f = fma64(a, s, s - 1.0)
    return fma64(n.astype(np.float64), LN2, _log_ratio(f / (f + 2.0)))


def log_specials(x: Array, pole: float, y: F32) -> F32:
    """`y` inside the domain of a logarithm, Inf at Inf, -Inf at the pole, NaN below it."""
    x = np.asarray(x, np.float32)
    y = np.where(x == np.inf, _INF, np.where(x == np.float32(pole), -_INF, y))
    return np.where(x >= np.float32(pole), y, CANONICAL_NAN)


def log2(x: Array) -> F32:
    """Binary logarithm."""
    return log_specials(x, 0.0, narrow(log2_64(x)))


def log10(x: Array) -> F32:
    """Decimal logarithm."""
    n, fraction = _split_log(x)
    low = fraction * float.fromhex("0x1.bcb7b1526e50ep-2")
    return log_specials(x, 0.0, narrow(fma64(n, float.fromhex("0x1.34413509f79ffp-2"), low)))


def asinh(x: Array) -> F32:
    """Inverse hyperbolic sine."""
    a = np.abs(np.asarray(x, np.float32))
    v = widen(clamp(a, 0.0, MAX))
    z = v * v
    y = log1p_64(v + z / (np.sqrt(z + 1.0) + 1.0))
    return with_sign(np.where(a == np.inf, a, narrow(y)), x)


def acosh(x: Array) -> F32:
    """Inverse hyperbolic cosine; NaN below 1."""
    x = np.asarray(x, np.float32)
    t = widen(x) - 1.0
    y = narrow(log1p_64(t + np.sqrt(t * (t + 2.0))))
    return np.where(x < 1, CANONICAL_NAN, np.where(x == np.inf, x, y))


def atanh(x: Array) -> F32:
    """Inverse hyperbolic tangent; NaN outside [-1, 1]."""
    a = np.abs(np.asarray(x, np.float32))
    v = widen(a)
    y = narrow(log1p_64((v + v) / (1.0 - v)) * 0.5)
    return with_sign(np.where(a <= 1, np.where(a == 1, _INF, y), CANONICAL_NAN), x)


def _ordered(a: Array, b: Array, gap: float) -> tuple[F32, F32]:
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    high, low = np.where(a > b, a, b), np.where(a < b, a, b)
    floor = sub32(high, np.float32(gap))
    return high, np.where(low > floor, low, np.where(np.isnan(low), low, floor))


def _logadd_specials(a: Array, b: Array, high: F32, y: F32) -> F32:
    y = np.where(np.abs(high) == np.inf, high, y)
    return np.where(np.isnan(a) | np.isnan(b), CANONICAL_NAN, y)


def logaddexp(a: Array, b: Array) -> F32:
    """log(e^a + e^b)."""
    high, low = _ordered(a, b, 110.0)
    h = widen(high)
    return _logadd_specials(a, b, high, narrow(h + log1p_64(exp64(widen(low) - h))))


def logaddexp2(a: Array, b: Array) -> F32:
    """log2(2^a + 2^b)."""
    high, low = _ordered(a, b, 160.0)
    h = widen(high)
    y = narrow(fma64(log1p_64(exp2_64(widen(low) - h)), LOG2E, h))
    return _logadd_specials(a, b, high, y)


def xlogy(x: Array, y: Array) -> F32:
    """x log(y), and 0 where x = 0 unless y is NaN."""
    x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
    v = np.where(x == 0, np.float32(0), mul32(x, log(y)))
    return np.where(np.isnan(y), CANONICAL_NAN, v)


# ---- powers and the error function -------------------------------------------------------------


def hypot(a: Array, b: Array) -> F32:
    """sqrt(a^2 + b^2); Inf if either is infinite."""
    x, y = widen(a), widen(b)
    r = narrow(np.sqrt(fma64(x, x, y * y)))
    return np.where((np.abs(x) == np.inf) | (np.abs(y) == np.inf), _INF, r)


def pow(x: Array, y: Array) -> F32:
    """x^y with the special values of C's pow."""
    x, y = np.broadcast_arrays(np.asarray(x, np.float32), np.asarray(y, np.float32))
    a, one = np.abs(x), np.float32(1)
    t = widen(clamp(y, -MAX, MAX)) * log2_64(a)
    t32 = narrow(t)
    r = narrow(exp2_64(np.where(np.abs(t32) <= 200, t, 0.0)))
    r = np.where(t32 < -200, np.float32(0), np.where(t32 > 200, _INF, r))
    edge = (a == 0) | (a == np.inf) | (np.abs(y) == np.inf)
    grow = np.where(a < 1, -one, one) * np.copysign(one, y)
    r = np.where(edge, np.where(grow > 0, _INF, np.float32(0)), r)
    r = np.where((a == 1) & (np.abs(y) == np.inf), one, r)
    half = mul32(y, np.float32(0.5))
    whole = np.rint(y) == y
    r = np.where(whole & (np.rint(half) != half) & np.signbit(x), -r, r)
    r = np.where((x < 0) & ~whole & (a < np.inf), CANONICAL_NAN, r)
    r = np.where(np.isnan(x) | np.isnan(y), CANONICAL_NAN, r)
    return np.where((y == 0) | (x == 1), one, r)


_ERFCX = _constants(
    "0x1.6e9827d22c27bp-3", "-0x1.4e102b9ed7f04p-2", "0x1.f6ff2045912f4p-3",
    "-0x1.336ffb2a41b6ap-3", "0x1.258b122b52c05p-4", "-0x1.8fa5eb842e30ep-6",
    "0x1.17c922eb2fd09p-8", "0x1.735d48e8b44c4p-11", "-0x1.391b8d10c14f9p-11",
    "0x1.6b877c29360fcp-15", "0x1.0bd9ddb8717adp-14", "-0x1.458aa23aaa4b7p-17",
    "-0x1.c51b72c15ca84p-18",
)  # fmt: skip
_ERF = _constants(
    "0x1.20dd750428b1fp+0", "-0x1.812746adb208ep-2", "0x1.ce2f20974d329p-4",
    "-0x1.b82cb8f1bc38ap-6", "0x1.56586cd79d2cap-8", "-0x1.bfdf58b6d479fp-11",
    "0x1.f56be4c13c4edp-14", "-0x1.d25cf1cc67327p-17", "0x1.1b8c413c50d62p-20",
)  # fmt: skip


def erfcx64(z: F64) -> F64:
    """e^(z*z) erfc(z) in fp64 (relative error 2^-34), 0 <= z <= 10.8."""
    return poly((z - 3.0) / (z + 3.0), _ERFCX)


def erf(x: Array) -> F32:
    """Error function."""
    a = clamp(np.abs(x), 0.0, 4.0)
    v = widen(a)
    z = v * v
    large = narrow(1.0 - exp64(-z) * erfcx64(v))
    return with_sign(np.where(a <= 1, narrow(v * poly(z, _ERF)), large), x)


def erfc(x: Array) -> F32:
    """Complementary error function."""
    v = widen(clamp(np.abs(x), 0.0, 10.5))
    e = exp64(-(v * v)) * erfcx64(v)
    below = np.asarray(x) < 0
    return narrow(fma64(np.where(below, -1.0, 1.0), e, np.where(below, 2.0, 0.0)))
