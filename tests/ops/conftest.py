"""Data for tests of row operations."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

Numbers = Callable[..., torch.Tensor]

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -3e38, 3e38]


def make_numbers(
    seed: int, shape: tuple[int, ...], dtype: torch.dtype, special: float = 0.0, scale: int = 12
) -> torch.Tensor:
    """Random numbers with exponents within 2**scale; a share `special` of zeros, Inf, NaN."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    x = x * 2.0 ** torch.randint(-scale, scale + 1, shape, generator=g)
    if special:
        pick = torch.tensor(SPECIAL)[torch.randint(0, len(SPECIAL), shape, generator=g)]
        x = torch.where(torch.rand(shape, generator=g) < special, pick, x)
    return x.to(dtype)


@pytest.fixture(scope="session")
def numbers() -> Numbers:
    return make_numbers
