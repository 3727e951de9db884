"""The normalisations in NumPy; fp32 in, fp32 out."""

from __future__ import annotations

import numpy as np

from samebits.contract.numerics import F32, Array, canonical, fma32
from samebits.ops.reduce import reference as rows


def reciprocal_deviation(squares: Array, n: int, eps: float) -> F32:
    """1 / sqrt(squares / n + eps), each operation rounded."""
    with np.errstate(all="ignore"):
        inside = canonical(rows.divided(squares, n) + np.float32(eps))
        return canonical(np.float32(1) / rows.root(inside))


def affine(t: Array, weight: Array | None, bias: Array | None) -> F32:
    """fma(t, weight, bias), t * weight, t + bias or t."""
    with np.errstate(all="ignore"):
        if weight is None:
            return canonical(t if bias is None else t + bias)
        return canonical(t * weight) if bias is None else fma32(t, weight, bias)


def normalised(d: Array, r: Array, weight: Array | None, bias: Array | None) -> F32:
    """affine(d * r)."""
    with np.errstate(all="ignore"):
        return affine(canonical(d * r), weight, bias)


def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-5) -> F32:
    """RMS norm over the last axis."""
    x = np.asarray(x, np.float32)
    r = reciprocal_deviation(rows.squares(x), x.shape[-1], eps)
    return normalised(x, r[..., None], weight, None)


def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> F32:
    """Layer norm over the last axis."""
    with np.errstate(all="ignore"):
        d = canonical(np.asarray(x, np.float32) - rows.mean(x)[..., None])
    r = reciprocal_deviation(rows.squares(d), x.shape[-1], eps)
    return normalised(d, r[..., None], weight, bias)


def group_norm(
    x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> F32:
    """Group norm of x [batch, channels, ...]."""
    batch, channels = x.shape[:2]
    flat = layer_norm(np.reshape(x, (batch, groups, -1)), None, None, eps)
    per_channel = (channels,) + (1,) * (x.ndim - 2)
    w, b = (None if p is None else np.reshape(p, per_channel) for p in (weight, bias))
    return affine(flat.reshape(x.shape), w, b)


def batch_norm(
    x: Array,
    mean: Array,
    var: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> F32:
    """Batch norm of x [batch, channels, ...] with given statistics."""
    per_channel = (x.shape[1],) + (1,) * (x.ndim - 2)
    mean, var = np.reshape(mean, per_channel), np.reshape(var, per_channel)
    w, b = (None if p is None else np.reshape(p, per_channel) for p in (weight, bias))
    with np.errstate(all="ignore"):
        d = canonical(np.asarray(x, np.float32) - mean)
    return normalised(d, reciprocal_deviation(var, 1, eps), w, b)
