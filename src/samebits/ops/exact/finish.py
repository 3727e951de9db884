"""The end of a norm: fp32 operations around exact sums, each rounded once."""

from __future__ import annotations

import torch

from samebits.ops.exact.engine import canonical
from samebits.ops.pointwise import sqrt as root


def normalised(
    x: torch.Tensor,
    d: torch.Tensor | None,
    squares: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """``fma(d * r, weight, bias)`` with ``r = 1 / sqrt(squares / n + eps)``, rounded to x's dtype.

    Args:
        x: [..., n].
        d: what is normalised, fp32 [..., n]; x itself if None.
        squares: fp32 [...].
        weight, bias: [n] or None.
        eps: rounded to fp32.
    """
    n = torch.full((), float(x.shape[-1]), dtype=torch.float32, device=x.device)
    one = torch.ones((), dtype=torch.float32, device=x.device)
    wide = x.to(torch.float32) if d is None else d
    r = one / root(squares / n + torch.full_like(n, eps))
    y = wide * r.unsqueeze(-1)
    if weight is not None:
        w = weight.to(torch.float32)
        y = y * w if bias is None else _fma(y, w, bias.to(torch.float32))
    elif bias is not None:
        y = y + bias.to(torch.float32)
    return canonical(y, x.dtype)


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """``a * b + c`` in fp32, rounded once: the product is exact in fp64, and the fp64 sum is
    rounded to odd, after which rounding to fp32 is right (Boldo and Melquiond 2008)."""
    p, c = a.to(torch.float64) * b.to(torch.float64), c.to(torch.float64)
    s = p + c
    t = s - p
    error = (p - (s - t)) + (c - t)
    word = s.view(torch.int64)
    away = (error > 0) == (s > 0)
    inexact = s.isfinite() & (error != 0) & (word & 1 == 0)
    odd = torch.where(inexact, word + torch.where(away, 1, -1), word)
    return odd.view(torch.float64).to(torch.float32)
