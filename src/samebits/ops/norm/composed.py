"""Group and batch norm of CUDA tensors, composed of row reductions and elementwise operations.

torch's elementwise CUDA kernels compute an element by itself: fp32 throughout, one IEEE operation
at a time, one rounding to the dtype at the end.
"""

from __future__ import annotations

import math

import torch

from samebits.ops import reduce

_F32 = torch.float32


def reciprocal_deviation(var: torch.Tensor, eps: float) -> torch.Tensor:
    """``1 / sqrt(var + eps)`` of an fp32 tensor."""
    return 1.0 / (var + eps).sqrt()


def group_norm(
    x: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Group norm of `x` [batch, channels, ...], contiguous; fp32 statistics [batch, groups]."""
    batch, channels = x.shape[:2]
    rows = x.view(batch * groups, channels // groups * math.prod(x.shape[2:])).to(_F32)
    var, mean = reduce.run_with_mean("var", rows, -1, True, 0.0)
    rstd = reciprocal_deviation(var, eps)
    normed = ((rows - mean) * rstd).view(batch, channels, -1)
    out = _affine(normed, weight, bias).to(x.dtype).view(x.shape)
    return out, mean.view(batch, groups), rstd.view(batch, groups)


def batch_norm(
    x: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Batch norm of `x` [batch, channels, ...] with given statistics [channels]."""
    flat = x.to(_F32).reshape(*x.shape[:2], -1)
    rstd = reciprocal_deviation(var.to(_F32), eps)[:, None]
    normed = (flat - mean.to(_F32)[:, None]) * rstd
    return _affine(normed, weight, bias).to(x.dtype).view(x.shape)


def _affine(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """``x * weight + bias`` of fp32 `x` [batch, channels, space]: a product, then a sum."""
    if weight is not None:
        x = x * weight.to(_F32)[:, None]
    if bias is not None:
        x = x + bias.to(_F32)[:, None]
    return x
