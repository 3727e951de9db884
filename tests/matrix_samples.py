"""Operands that break sloppy arithmetic."""

from __future__ import annotations

import math

import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ["normal", "cancel", "wide", "subnormal", "special"]


def values(shape: tuple[int, ...], dtype: torch.dtype, kind: str, seed: int) -> torch.Tensor:
    """Random values: plain, cancelling, of very different size, subnormal, or with Inf and NaN."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    if kind == "cancel":
        sign = torch.randint(0, 2, shape, generator=g) * 2 - 1
        x = sign * (1 + torch.rand(shape, generator=g) * 2.0**-6) * 1000
    elif kind == "wide":
        x = x * 2.0 ** torch.randint(-14, 15, shape, generator=g)
    elif kind == "subnormal":
        x = x * (2.0**-75 if dtype is not torch.float16 else 2.0**-16)
    elif kind == "special":
        some = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-45])
        pick = torch.randint(0, 8, shape, generator=g)
        x = torch.where(torch.rand(shape, generator=g) < 0.03, some[pick], x)
        zero = torch.where(torch.rand(shape, generator=g) < 0.5, 0.0, -0.0)
        x = torch.where(torch.rand(shape, generator=g) < 0.2, zero, x)
    return x.to(dtype)


def restride(x: torch.Tensor, how: str) -> torch.Tensor:
    """The same values elsewhere in memory: transposed, with gaps, offset, or broadcast rows."""
    if how == "transposed":
        return x.mT.contiguous().mT
    if how == "gaps":
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 3), math.nan, dtype=x.dtype)
        view = wide[..., 1 : 1 + 2 * x.shape[-1] : 2]
        view.copy_(x)
        return view
    if how == "offset":
        flat = torch.full((x.numel() + 1,), math.nan, dtype=x.dtype)[1:]
        flat.copy_(x.flatten())
        return flat.view(x.shape)
    if how == "rows":
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 5), math.nan, dtype=x.dtype)
        wide[..., : x.shape[-1]] = x
        return wide[..., : x.shape[-1]]
    return x


STRIDES = ["dense", "transposed", "gaps", "offset", "rows"]
