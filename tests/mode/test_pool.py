"""Adaptive average pooling agrees with torch and does not depend on the memory layout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import samebits as sb


@pytest.mark.parametrize("shape", [(3, 5, 19, 23), (5, 7, 7), (2, 19, 4, 9)])
@pytest.mark.parametrize("size", [(5, 3), (7, 7), (1, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_adaptive_avg_pool2d(
    shape: tuple[int, ...], size: tuple[int, int], dtype: torch.dtype
) -> None:
    x = torch.randn(shape).to(dtype)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    stock = F.adaptive_avg_pool2d(a, size)
    (stock_grad,) = torch.autograd.grad(stock, a, stock.detach())
    with sb.deterministic():
        ours = F.adaptive_avg_pool2d(b, size)
        (grad,) = torch.autograd.grad(ours, b, stock.detach())
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype is not torch.float32 else {}
    torch.testing.assert_close(ours, stock, **close)
    torch.testing.assert_close(grad, stock_grad, **close)


def test_stock_depends_on_the_layout() -> None:
    x = torch.randn(3, 19, 19, 23)
    other = x.to(memory_format=torch.channels_last)
    with sb.deterministic():
        assert torch.equal(F.adaptive_avg_pool2d(x, (5, 3)), F.adaptive_avg_pool2d(other, (5, 3)))
    assert not torch.equal(F.adaptive_avg_pool2d(x, (5, 3)), F.adaptive_avg_pool2d(other, (5, 3)))
