"""The elementary functions of the CPU engine, as exact twins in NumPy.

f(x)[i] depends on x[i] alone: range reduction, one fixed polynomial in fused multiply-adds (minimax
fits with rounded coefficients), and the exponent put back by exact multiplications. The C++ side is
csrc/math.hpp, operation for operation; tests compare their bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from samebits.contract.numerics import CANONICAL_NAN, F32, Array, add32, div32, fma32, mul32, sub32

_EXP2 = ("0x1.417a70p-13", "0x1.5f0948p-10", "0x1.3b2dd2p-7", "0x1.c6af7ap-5", "0x1.ebfbdcp-3",
         "0x1.62e430p-1", "0x1p0")  # fmt: skip
#: 2^f on [-1/2, 1/2] for p that is rounded to 16 bits: relative error under 2^-18 and 2^-13.
EXP2_SHORT = {
    4: ("0x1.3a02ccp-7", "0x1.c9fc46p-5", "0x1.ec0378p-3", "0x1.62e12cp-1", "0x1p0"),
    3: ("0x1.c2a218p-5", "0x1.f00c4cp-3", "0x1.62f5fap-1", "0x1p0"),
}
_EXPM1 = ("0x1.6b6982p-10", "0x1.122f1ep-7", "0x1.55568cp-5", "0x1.5554a4p-3", "0x1p-1")
_LOG = ("0x1.147dd0p-4", "-0x1.de2584p-4", "0x1.e6cda8p-4", "-0x1.fc24b4p-4", "0x1.233aacp-3",
        "-0x1.555c52p-3", "0x1.99a47ep-3", "-0x1.000006p-2", "0x1.555548p-2")  # fmt: skip


def constant(text: str) -> F32:
    """An fp32 constant from its hexadecimal text, exactly."""
    return np.array(float.fromhex(text), np.float32)


LOG2E, LN2_HIGH, LN2_LOW = (
    constant(c) for c in ("0x1.715476p+0", "0x1.62e400p-1", "0x1.7f7d1cp-20")
)

#: Added to |x| < 2^22 and taken away again, it leaves the integer nearest to x (ties to even).
NEAREST = np.float32(1.5 * 2**23)


def polynomial(x: F32, coefficients: tuple[str, ...]) -> F32:
    """Horner's rule in fma, the highest coefficient first."""
    p = np.broadcast_to(constant(coefficients[0]), x.shape)
    for c in coefficients[1:]:
        p = fma32(p, x, constant(c))
    return p.astype(np.float32)


def clamp(x: Array, low: float, high: float) -> F32:
    """`x` kept inside [low, high]; a NaN stays."""
    x = np.asarray(x, np.float32)
    x = np.where(np.float32(low) > x, np.float32(low), x)
    return np.where(np.float32(high) < x, np.float32(high), x)


def nearest(x: F32) -> F32:
    """The nearest integer, ties to even; a NaN stays."""
    with np.errstate(all="ignore"):
        return np.rint(x)


def _integers(n: F32) -> npt.NDArray[np.int64]:
    return np.where(np.isnan(n), 0, n).astype(np.int64)


def _power(n: npt.NDArray[np.int64]) -> F32:
    return np.ldexp(1.0, n).astype(np.float32)


def scale(v: F32, n: npt.NDArray[np.int64]) -> F32:
    """v * 2^n in two multiplications, so that a subnormal result is rounded once."""
    half = n >> 1
    return mul32(mul32(v, _power(half)), _power(n - half))


def exp2(x: Array) -> F32:
    """2^x. Subnormal results are rounded once; x < -150 gives +0, x >= 128 gives Inf."""
    x = clamp(x, -160.0, 130.0)
    n = nearest(x)
    return scale(polynomial(sub32(x, n), _EXP2), _integers(n))


def exp2_flush(x: Array) -> F32:
    """2^x for x <= 127, exactly +0 where x < -126: attention's softmax weights. A NaN stays."""
    x = np.asarray(x, np.float32)
    inside = clamp(x, -127.0, np.inf)
    n = nearest(inside)
    with np.errstate(all="ignore"):
        y = mul32(polynomial(sub32(inside, n), _EXP2), _power(np.minimum(_integers(n), 127)))
    return np.where(np.isnan(x), CANONICAL_NAN, np.where(x < -126, np.float32(0), y))


def exp2_short(x: Array, degree: int) -> F32:
    """2^x for x <= 0 by a polynomial of few terms: the softmax weights of a tensor core.

    n = rint(x), P(x - n) of `EXP2_SHORT`, one multiplication by 2^n; +0 where n <= -127. A NaN
    stays.
    """
    x = clamp(x, -127.0, np.inf)
    n = nearest(x)
    powers = np.where(n < -126, np.float32(0), _power(np.clip(_integers(n), -126, 127)))
    return mul32(polynomial(sub32(x, n), EXP2_SHORT[degree]), powers)


def softcap_tanh(x: Array) -> F32:
    """tanh for attention's softcap: 1 - 2 / (2^min(126, x * fp32(2 log2 e)) + 1). A NaN stays."""
    one, y = np.float32(1), mul32(x, constant("0x1.715476p+1"))
    return sub32(one, div32(np.float32(2), add32(exp2_flush(np.minimum(y, np.float32(126))), one)))


def exp(x: Array) -> F32:
    """e^x: x = n ln 2 + r by Cody and Waite's two constants, then e^r = 1 + r + r^2 p(r)."""
    x = clamp(x, -110.0, 90.0)
    n = nearest(mul32(x, LOG2E))
    r = fma32(n, -LN2_LOW, fma32(n, -LN2_HIGH, x))
    p = fma32(polynomial(r, _EXPM1), mul32(r, r), r)
    return scale(add32(p, np.float32(1)), _integers(n))


def exp_flush(x: Array) -> F32:
    """e^x with fewer steps than `exp`: the softmax weights of a GPU's rows. A NaN stays.

    z = fma(x, log2 e, 1.5 * 2^23) holds n, the integer nearest to x log2 e; then as in `exp`, but
    one multiplication by 2^n, where n = -127 (x <= -88 at the latest) gives +0 and n = 128 Inf.
    """
    x = clamp(x, -88.0, 89.0)
    n = sub32(fma32(x, LOG2E, NEAREST), NEAREST)
    r = fma32(n, -LN2_LOW, fma32(n, -LN2_HIGH, x))
    p = add32(fma32(polynomial(r, _EXPM1), mul32(r, r), r), np.float32(1))
    word = (_integers(n) + 127).astype(np.int32) << 23
    return mul32(p, word.view(np.float32))


def log(x: Array) -> F32:
    """Natural logarithm, subnormals included. log(+-0) = -Inf, log(x < 0) = NaN."""
    x = np.asarray(x, np.float32)
    tiny = x < np.float32(2.0**-126)
    v = np.where(tiny, mul32(x, np.float32(2.0**24)), x)
    words = np.ascontiguousarray(v).view(np.int32).reshape(v.shape)
    n = (words - np.int32(0x3F3504F3)) >> 23  # leaves a significand in [sqrt(1/2), sqrt(2))
    f = sub32((words - (n << 23)).view(np.float32), np.float32(1))
    e = add32(n.astype(np.float32), np.where(tiny, np.float32(-24), np.float32(0)))
    y = _log_parts(f, e)
    y = np.where(x == np.inf, np.float32(np.inf), np.where(x == 0, np.float32(-np.inf), y))
    return np.where(x >= 0, y, CANONICAL_NAN)


def _log_parts(f: F32, n: F32) -> F32:
    """log(1 + f) + n ln 2 for f in [sqrt(1/2) - 1, sqrt(2) - 1]."""
    z = mul32(f, f)
    t = fma32(mul32(polynomial(f, _LOG), f), z, mul32(n, LN2_LOW))
    t = fma32(z, np.float32(-0.5), t)
    return fma32(n, LN2_HIGH, add32(f, t))
