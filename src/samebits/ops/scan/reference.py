"""Running sums and products along the last axis in NumPy; fp32 in, fp32 out."""

from __future__ import annotations

import numpy as np

from samebits.contract.numerics import F32, Array, canonical


def cumsum(x: Array) -> F32:
    """One chain of binary64 additions from +0, each partial sum rounded to fp32."""
    return _chain(x, 0.0, False)


def cumprod(x: Array) -> F32:
    """One chain of binary64 multiplications from 1, each partial product rounded to fp32."""
    return _chain(x, 1.0, True)


def _chain(x: Array, start: float, product: bool) -> F32:
    wide = np.asarray(x, np.float32).astype(np.float64)
    out, acc = np.empty(wide.shape, np.float32), np.full(wide.shape[:-1], start)
    with np.errstate(all="ignore"):
        for k in range(wide.shape[-1]):
            acc = acc * wide[..., k] if product else acc + wide[..., k]
            out[..., k] = acc.astype(np.float32)
    return canonical(out)
