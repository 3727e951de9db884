"""Norms of CUDA tensors."""

from __future__ import annotations

import torch

from samebits.engines.triton.rows import norm as engine
from samebits.ops.checks import one_device
from samebits.ops.gpu import recorded, schedule_for, strided_rows


@recorded
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
    schedule = schedule_for(op, flat)
    weight, bias = _parameter(weight), _parameter(bias)
    y, total = engine.norm(flat, added, weight, bias, eps, schedule, centred=op == "layer_norm")
    if flat is not x:
        y, total = y.view(x.shape), None if total is None else total.view(x.shape)
    return y if total is None else (y, total)


def _parameter(p: torch.Tensor | None) -> torch.Tensor | None:
    if p is None or (p.dim() == 1 and p.is_contiguous()):
        return p
    return p.reshape(-1).contiguous()


def _rows_like(rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """`residual` with the shape of `rows` and a contiguous last axis."""
    like = residual if residual.shape == rows.shape else residual.reshape(rows.shape)
    return like if like.stride(-1) == 1 else like.contiguous()
