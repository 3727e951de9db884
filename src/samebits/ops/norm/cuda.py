"""Norms of CUDA tensors."""

from __future__ import annotations

import torch

from samebits.engines.triton.rows import norm as engine
from samebits.ops.checks import one_device
from samebits.ops.gpu import matrix, schedule_for


def norm(
    op: str,
    x: torch.Tensor,
    n: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """RMS norm or layer norm over the last n elements; see `samebits.ops.norm`, which checks."""
    one_device(op, x, weight, bias, residual)
    if not x.numel():
        empty = x.new_empty(x.shape)
        return empty if residual is None else (empty, x.new_empty(x.shape))
    flat = matrix(op, x, n)
    added = None if residual is None else matrix(op, residual, n)
    weight, bias = (None if p is None else p.reshape(-1).contiguous() for p in (weight, bias))
    y, total = engine.norm(
        flat, added, weight, bias, eps, schedule_for(op, flat), centred=op == "layer_norm"
    )
    y = y.view(x.shape)
    return y if total is None else (y, total.view(x.shape))
