"""Operands for exact operations: exponents that fp64 can hold together, and others."""

from __future__ import annotations

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Largest exponent that `spread` may reach without an overflow of the type.
_REACH = {torch.float32: 60, torch.bfloat16: 60, torch.float16: 8}


def spread(*shape: int, dtype: torch.dtype, octaves: int, seed: int) -> torch.Tensor:
    """Random numbers whose exponents are spread over 2 * `octaves`; whole numbers for 0."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    reach = min(octaves, _REACH[dtype])
    x = x * torch.exp2(torch.randint(-reach, reach + 1, shape, generator=g).float())
    return (x.mul(4).round() if octaves == 0 else x).to(dtype)


def special(x: torch.Tensor, seed: int, share: float = 0.02) -> torch.Tensor:
    """`x` with some Inf, NaN and zeros of both signs."""
    g = torch.Generator().manual_seed(seed)
    values = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0], dtype=x.dtype)
    chosen = values[torch.randint(0, 5, x.shape, generator=g)]
    return torch.where(torch.rand(x.shape, generator=g) < share, chosen, x)
