"""Rotary embedding of CUDA tensors."""

from __future__ import annotations

import torch

from samebits.engines.triton.rows import heads
from samebits.engines.triton.rows import rotary as engine
from samebits.errors import ShapeError
from samebits.ops.gpu import recorded


@recorded
def rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    interleaved: bool,
) -> torch.Tensor:
    """See `samebits.ops.rotary`, which checks shapes and dtypes.

    A position outside the caches reads as NaN: the GPU is not waited for.
    """
    shape = x.shape
    lead = shape[:-1]
    x, cos, sin = (t if t.stride(-1) == 1 else t.contiguous() for t in (x, cos, sin))
    if positions is None:
        cos, sin = (f.expand(*lead, f.shape[-1]) for f in (cos, sin))
        x, cos, sin = (_three_axes(t) for t in (x, cos, sin))
        if x.shape != cos.shape[:3] + x.shape[-1:]:
            x, cos, sin = (t.reshape(1, 1, -1, t.shape[-1]) for t in (x, cos, sin))
    else:
        positions = positions.contiguous()
        x = x.reshape(1, -1, *shape[-2:])
    if len(x) > 65535:
        raise ShapeError(f"rotary: {len(x)} leading entries of {tuple(shape)}: cut them up")
    return engine.rotary(x, cos, sin, positions, interleaved).view(shape)


def _three_axes(x: torch.Tensor) -> torch.Tensor:
    """`x` with exactly three leading axes: missing ones in front, extra ones merged."""
    if x.dim() <= 4:
        return x[(None,) * (4 - x.dim())]
    return x.reshape(-1, *x.shape[-3:])


@recorded
def rotary_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `samebits.ops.rotary_qk`, which checks everything."""
    q, k, cos, sin = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, cos, sin))
    q_weight, k_weight = (w if w is None else w.contiguous() for w in (q_weight, k_weight))
    return heads.heads(q, k, cos, sin, positions.contiguous(), q_weight, k_weight, eps)
