"""Running sums and products along the last axis in NumPy; fp32 in, the fp32 accumulators out."""

from __future__ import annotations

import numpy as np

from samebits.contract.numerics import F32, Array, add32, mul32


def cumsum(x: Array) -> F32:
    """One chain of additions from +0."""
    return _chain(x, 0.0, False)


def cumprod(x: Array) -> F32:
    """One chain of multiplications from 1."""
    return _chain(x, 1.0, True)


def _chain(x: Array, start: float, product: bool) -> F32:
    x = np.asarray(x, np.float32)
    step = mul32 if product else add32
    out, acc = np.empty_like(x), np.full(x.shape[:-1], start, np.float32)
    for k in range(x.shape[-1]):
        acc = step(acc, x[..., k])
        out[..., k] = acc
    return out
