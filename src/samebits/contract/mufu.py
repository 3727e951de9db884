"""The special function unit of sm_90: ex2.approx.ftz.f32 to the bit.

The unit is deterministic but its results are no formula of IEEE 754. It was read out on an H200:
x is cut toward zero to 23 fraction bits, x = n + j / 2^23, and the result is (1 + g[j] / 2^23) 2^n
with one table g for every n; results below 2^-126 are +0. A positive x reads g[j + 1] (the unit
seems to complement a negative fraction without the carry). All fp32 values of magnitude 2^-40 to
2^8 were compared with the chip. The table is stored as the differences g[j] - g[j - 1], each 0
to 3.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samebits.contract.numerics import CANONICAL_NAN, F32, Array

_TABLE = Path(__file__).with_name("mufu_ex2_sm_90.z")
_BITS = 23


@lru_cache(maxsize=1)
def _significands() -> npt.NDArray[np.int32]:
    """g: [2^23 + 1], the fraction bits of the results in [1, 2)."""
    steps = np.frombuffer(zlib.decompress(_TABLE.read_bytes()), np.int8)
    g = np.cumsum(steps, dtype=np.int32)
    return np.append(g, np.int32((1 << _BITS) - 1))


def ex2(x: Array) -> F32:
    """2^x as ex2.approx.ftz.f32 gives it on sm_90.

    Args:
        x: fp32, any shape.

    Returns:
        fp32; +0 below 2^-126, Inf from x = 128 on, the canonical NaN for NaN.
    """
    x = np.asarray(x, np.float32)
    inside = np.clip(np.where(np.isnan(x), np.float32(0), x), -200.0, 200.0)
    q = np.trunc(np.ldexp(inside.astype(np.float64), _BITS)).astype(np.int64)
    n, j = q >> _BITS, q & ((1 << _BITS) - 1)
    words = (np.clip(n, -126, 127) + 127 << _BITS) | _significands()[j + (q > 0)]
    y = words.astype(np.int32).view(np.float32)
    y = np.where(n < -126, np.float32(0), np.where(n > 127, np.float32(np.inf), y))
    out: F32 = np.where(np.isnan(x), CANONICAL_NAN, y).astype(np.float32)
    return out
