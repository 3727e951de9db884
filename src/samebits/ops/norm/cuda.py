"""Norms of CUDA tensors."""

from __future__ import annotations

import torch

from samebits.engines.triton.rows import norm as engine
from samebits.ops.checks import one_device
from samebits.ops.gpu import schedule_for, strided_rows


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
    flat = strided_rows(op, x, n)
    added = None if residual is None else _rows_like(flat, residual)
    weight, bias = (None if p is None else p.reshape(-1).contiguous() for p in (weight, bias))
    y, total = engine.norm(
        flat, added, weight, bias, eps, schedule_for(op, flat), centred=op == "layer_norm"
    )
    y = y.view(x.shape)
    return y if total is None else (y, total.view(x.shape))


def _rows_like(rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """`residual` with the shape of `rows` [outer, inner, n] and a contiguous last axis."""
    like = residual.reshape(rows.shape)
    return like if like.stride(-1) == 1 else like.contiguous()
