"""Exact NumPy twins of the vector functions that attention uses (csrc/math.hpp, explicit fma)."""

from __future__ import annotations

import numpy as np

from samebits.contract.numerics import F32, add32, canonical, fma32, mul32


def _c(text: str) -> F32:
    return np.array(float.fromhex(text), np.float32)


_EXP2 = """
    0x1.417a70p-13 0x1.5f0948p-10 0x1.3b2dd2p-7 0x1.c6af7ap-5 0x1.ebfbdcp-3 0x1.62e430p-1 0x1.0p0
"""
_LOG = """
    0x1.147dd0p-4 -0x1.de2584p-4 0x1.e6cda8p-4 -0x1.fc24b4p-4 0x1.233aacp-3 -0x1.555c52p-3
    0x1.99a47ep-3 -0x1.000006p-2 0x1.555548p-2
"""


def _horner(coefficients: str, x: F32) -> F32:
    first, *rest = coefficients.split()
    p = np.full_like(x, _c(first))
    for c in rest:
        p = fma32(p, x, _c(c))
    return p


def exp2_flush(x: F32) -> F32:
    """2^x for x <= 127; exactly +0 below -126. NaN stays."""
    nan = np.isnan(x)
    y = np.maximum(np.float32(-127), np.where(nan, np.float32(0), x))
    n = np.rint(y)
    with np.errstate(invalid="ignore", over="ignore"):
        f = np.where(np.isfinite(y), y - n, np.float32(0))
        power = np.ldexp(_horner(_EXP2, f), np.clip(n, -127, 200).astype(int))
    return canonical(np.where(nan, np.float32(np.nan), np.where(x < -126, np.float32(0), power)))


def tanh(x: F32) -> F32:
    """1 - 2 / (2^(2 x log2 e) + 1)."""
    y = np.minimum(np.float32(126), mul32(x, np.array(2.8853900817779268)))
    with np.errstate(all="ignore"):
        return canonical(np.float32(1) - np.float32(2) / (exp2_flush(y) + np.float32(1)))


def log(x: F32) -> F32:
    """Natural logarithm; log(0) = -Inf, NaN below."""
    x = np.asarray(x, np.float32)
    tiny = x < _c("0x1p-126")
    v = np.where(tiny, mul32(x, _c("0x1p24")), x).view(np.int32)
    n = (v - np.int32(0x3F3504F3)) >> 23
    m = (v - (n << 23)).view(np.float32)
    e = n.astype(np.float32) + np.where(tiny, np.float32(-24), np.float32(0))
    f = add32(m, np.array(-1))
    z = mul32(f, f)
    t = fma32(mul32(_horner(_LOG, f), f), z, mul32(e, _c("0x1.7f7d1cp-20")))
    t = fma32(z, np.array(-0.5), t)
    y = fma32(e, _c("0x1.62e400p-1"), add32(f, t))
    y = np.where(x == np.inf, np.float32(np.inf), np.where(x == 0, np.float32(-np.inf), y))
    return np.where(x >= 0, y, canonical(np.float32(np.nan)))
