"""Circular functions and their inverses: exact twins in NumPy of csrc/trig.hpp."""

from __future__ import annotations

import numpy as np

from samebits.contract.functions import clamp
from samebits.contract.functions64 import (
    I64,
    MAX,
    PI,
    _constants,
    fma64,
    narrow,
    neg_unless,
    poly,
    to_int,
    widen,
    with_sign,
)
from samebits.contract.numerics import CANONICAL_NAN, F32, F64, Array, mul32

_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E0
_SIN = _constants(
    "0x1p+0", "-0x1.5555554c6ff01p-3", "0x1.11110869026dfp-7", "-0x1.a00f7e0d9a9cbp-13",
    "0x1.6cd1af0779bfbp-19",
)  # fmt: skip
_COS = _constants(
    "0x1p+0", "-0x1.ffffffffe984fp-2", "0x1.55555545c1c59p-5", "-0x1.6c16b3467e0d0p-10",
    "0x1.a00eb87f5cc6ep-16", "-0x1.23c9475bb8a3cp-22",
)  # fmt: skip
_ATAN = _constants(
    "0x1p+0", "-0x1.55555554743fbp-2", "0x1.999998787e87ap-3", "-0x1.24920976b406dp-3",
    "0x1.c70ecdeec7fd3p-4", "-0x1.738c5626c1f10p-4", "0x1.33afecdbf5693p-4",
    "-0x1.d1e89d9fc5439p-5", "0x1.c9b2829692c4dp-6",
)  # fmt: skip


def _reduce_large(x: float) -> tuple[F32, F32, int]:
    """Payne and Hanek for one finite x >= 2^17: x = q pi/2 + high + low (q modulo 4)."""
    word = int(np.float32(x).view(np.uint32))
    start = 62 + (word >> 23) - 150  # of 384 bits: 64 zeros, then 320 bits of 2/pi
    window = (_TWO_OVER_PI >> (256 - start)) & (2**128 - 1)
    product = (((word & 0x7FFFFF) | 0x800000) * window) & (2**128 - 1)
    fraction = (product << 2) & (2**128 - 1)
    low64 = fraction & (2**64 - 1)
    high64 = fraction >> 64
    if high64 >= 2**63:
        high64 -= 2**64
    r = (float(high64) * 2.0**64 + float(low64)) * (PI * 2.0**-129)
    high = np.float32(r)
    return high, np.float32(r - float(high)), (product >> 126) + (fraction >> 127)


def _reduce_quadrant(a: F32) -> tuple[F64, I64]:
    """a = q pi/2 + r with |r| <= pi/4, for a >= 0; Inf and NaN count as 0."""
    fast = a < np.float32(2.0**17)
    x = widen(np.where(fast, a, np.float32(0)))
    n = np.rint(x * float.fromhex("0x1.45f306dc9c883p-1"))
    r = fma64(n, -PI / 2, x)
    r = fma64(n, -float.fromhex("0x1.1a62633145c07p-54"), r)
    q = to_int(n)
    for i in np.flatnonzero(~fast & (a < np.inf)):
        high, low, turns = _reduce_large(float(a.flat[i]))
        r.flat[i] = (r.flat[i] + float(high)) + float(low)
        q.flat[i] += turns
    return r, q


def _sin_reduced(r: F64, z: F64) -> F64:
    return r * poly(z, _SIN)


def _finite_only(x: Array, y: F32) -> F32:
    return np.where(np.isfinite(x), y, CANONICAL_NAN)


def _sin_shifted(a: F32, quarters: int) -> F32:
    r, q = _reduce_quadrant(a)
    z, q = r * r, q + quarters
    y = np.where(q & 1, narrow(poly(z, _COS)), narrow(_sin_reduced(r, z)))
    return neg_unless(q & 2 == 0, y)


def sin(x: Array) -> F32:
    """Sine, accurate for every finite argument."""
    x = np.asarray(x, np.float32)
    return _finite_only(x, neg_unless(~np.signbit(x), _sin_shifted(np.abs(x), 0)))


def cos(x: Array) -> F32:
    """Cosine, accurate for every finite argument."""
    return _finite_only(x, _sin_shifted(np.abs(np.asarray(x, np.float32)), 1))


def tan(x: Array) -> F32:
    """Tangent, accurate for every finite argument."""
    x = np.asarray(x, np.float32)
    r, q = _reduce_quadrant(np.abs(x))
    z = r * r
    s, c = _sin_reduced(r, z), poly(z, _COS)
    with np.errstate(all="ignore"):
        y = np.where(q & 1, -narrow(c / s), narrow(s / c))
    return _finite_only(x, neg_unless(~np.signbit(x), y))


def _atan_ratio(a: F64, b: F64, a32: F32, b32: F32) -> F64:
    """atan(a / b) for a, b >= 0, not both 0."""
    steep = mul32(b32, np.float32(float.fromhex("0x1.3504f4p+1"))) < a32
    flat = a32 <= mul32(b32, np.float32(float.fromhex("0x1.a8279ap-2")))
    up = fma64(np.where(flat, 0.0, -1.0), b, np.where(steep, 0.0, 1.0) * a)
    down = fma64(np.where(steep, 0.0, 1.0), b, np.where(flat, 0.0, 1.0) * a)
    base = np.where(steep, 2.0, np.where(flat, 0.0, 1.0))
    with np.errstate(all="ignore"):
        s = up / down
    return fma64(base, PI / 4, s * poly(s * s, _ATAN))


def atan(x: Array) -> F32:
    """Arc tangent."""
    a = clamp(np.abs(x), 0.0, MAX)
    one = np.ones_like(a)
    return with_sign(narrow(_atan_ratio(widen(a), widen(one), a, one)), x)


def _reflected(r: F64, reflect: Array) -> F32:
    return narrow(fma64(np.where(reflect, -1.0, 1.0), r, np.where(reflect, 1.0, 0.0) * PI))


def atan2(y: Array, x: Array) -> F32:
    """The angle of the point (x, y), signed zeros and infinities as in C."""
    y, x = np.broadcast_arrays(np.asarray(y, np.float32), np.asarray(x, np.float32))
    a, b = np.abs(y), np.abs(x)
    infinite = (a == np.inf) | (b == np.inf)
    a, b = (np.where(infinite, (v == np.inf).astype(np.float32), v) for v in (a, b))
    b = np.where((a == 0) & (b == 0), np.float32(1), b)
    r = with_sign(_reflected(_atan_ratio(widen(a), widen(b), a, b), np.signbit(x)), y)
    return np.where(np.isnan(x) | np.isnan(y), CANONICAL_NAN, r)


def _cosine_of_asin(a: F32) -> F64:
    v = widen(a)
    with np.errstate(all="ignore"):
        return np.sqrt((1.0 - v) * (v + 1.0))


def asin(x: Array) -> F32:
    """Arc sine; NaN outside [-1, 1]."""
    a = np.abs(np.asarray(x, np.float32))
    b = _cosine_of_asin(a)
    y = with_sign(narrow(_atan_ratio(widen(a), b, a, narrow(b))), x)
    return np.where(a <= 1, y, CANONICAL_NAN)


def acos(x: Array) -> F32:
    """Arc cosine; NaN outside [-1, 1]."""
    x = np.asarray(x, np.float32)
    a = np.abs(x)
    b = _cosine_of_asin(a)
    y = _reflected(_atan_ratio(b, widen(a), narrow(b), a), np.signbit(x))
    return np.where(a <= 1, y, CANONICAL_NAN)
