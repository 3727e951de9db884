"""Data for tests of row operations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from samebits import bits
from samebits.contract import numerics

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


def as_array(x: torch.Tensor) -> np.ndarray:
    """The values of a tensor as fp32, exactly."""
    return x.to(torch.float32).numpy()


def assert_bits(got: torch.Tensor, want: np.ndarray) -> None:
    """`got` is `want` (fp32) rounded once to the dtype of `got`, NaN canonical."""
    name = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[got.dtype]
    rounded = numerics.round_to(want, name)
    assert got.shape == rounded.shape
    exact = numerics.canonical(got.to(torch.float32).numpy())
    different = exact.view(np.uint32) != rounded.view(np.uint32)
    assert not different.any(), (exact[different][:4], rounded[different][:4])
    nan = bits.view(got)[got.isnan()]
    assert set(nan.tolist()) <= {0x7FC00000, 0x7FC0, 0x7E00}


@pytest.fixture(scope="session")
def array() -> Callable[[torch.Tensor], np.ndarray]:
    return as_array


@pytest.fixture(scope="session")
def same() -> Callable[[torch.Tensor, np.ndarray], None]:
    return assert_bits
