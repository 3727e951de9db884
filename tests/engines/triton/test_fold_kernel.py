"""The fold of ranks' partial sums, through the interpreter."""

from __future__ import annotations

import operator

import pytest
import torch

from interpreter import INTERPRETED
from samebits.contract.tree import fold

pytest.importorskip("triton")
from samebits.engines.triton.rows.fold import fold_parts

DEVICE = "cpu" if INTERPRETED else "cuda"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("parts", "shape"), [(1, (1, 1)), (2, (3, 40)), (4, (5, 17)), (8, (2, 300))]
)
def test_parts_are_folded_pairwise(parts: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(parts)
    x = torch.randn(parts, *shape, generator=noise) * torch.logspace(-3, 3, shape[1])
    bias = torch.randn(shape[1], generator=noise).to(dtype)
    total = fold(list(x), "pairwise", operator.add)
    for b, expected in ((None, total), (bias, total + bias.float())):
        y = fold_parts(x.to(DEVICE), None if b is None else b.to(DEVICE), dtype).cpu()
        assert torch.equal(y.view(torch.uint8), expected.to(dtype).view(torch.uint8))
    if parts > 2 and x.numel() > 100:
        assert not torch.equal(total, fold(list(x), "ascending", operator.add))


def test_no_rows() -> None:
    assert fold_parts(torch.zeros(2, 0, 8, device=DEVICE), None, torch.bfloat16).shape == (0, 8)
