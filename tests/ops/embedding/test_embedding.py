"""Embedding moves bytes."""

from __future__ import annotations

import pytest
import torch

from samebits import bits
from samebits.errors import DTypeError, ShapeError
from samebits.ops import embedding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_rows_are_moved(dtype: torch.dtype) -> None:
    weight = torch.randn(11, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    words = bits.view(weight)
    words[3] = -1  # a NaN with a payload
    ids = torch.tensor([[3, 0], [10, 3]])
    assert bits.equal(bits.view(embedding(ids, weight)), words[ids])
    assert bits.equal(embedding(ids[0].int(), weight), embedding(ids, weight)[0])


def test_errors() -> None:
    weight = torch.zeros(3, 2)
    with pytest.raises(ShapeError):
        embedding(torch.tensor([0]), weight[0])
    with pytest.raises(DTypeError):
        embedding(torch.tensor([0.0]), weight)
    with pytest.raises(IndexError):
        embedding(torch.tensor([3]), weight)
