"""Adaptive average pooling: the mean of each window, whatever the memory layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from samebits.mode.fallback import ENGINE_DTYPES, stock
from samebits.mode.registry import DENSE, aten

_STOCK = stock("_adaptive_avg_pool2d")
_STOCK_BACKWARD = stock("_adaptive_avg_pool2d_backward")


def _windows(size: int, parts: int) -> Iterator[tuple[int, slice]]:
    """torch's windows: from floor(i * size / parts) to ceil((i + 1) * size / parts)."""
    for i in range(parts):
        yield i, slice(i * size // parts, -(-(i + 1) * size // parts))


@aten("_adaptive_avg_pool2d", key=DENSE)
def adaptive_avg_pool2d(self: torch.Tensor, output_size: Sequence[int]) -> Any:
    height, width = output_size
    if self.dtype not in ENGINE_DTYPES or self.numel() == 0 or self.dim() not in (3, 4):
        return _STOCK.by_dtype(self.dtype, self, output_size)
    out = self.new_empty(*self.shape[:-2], height, width)
    for i, rows in _windows(self.shape[-2], height):
        for j, columns in _windows(self.shape[-1], width):
            out[..., i, j] = self[..., rows, columns].mean((-2, -1))
    return out


@aten("_adaptive_avg_pool2d_backward", key=DENSE)
def adaptive_avg_pool2d_backward(grad_output: torch.Tensor, self: torch.Tensor) -> Any:
    """Windows overlap: their shares are added in fp32, in the order of the windows."""
    if self.dtype not in ENGINE_DTYPES or grad_output.dtype is not self.dtype:
        return _STOCK_BACKWARD.by_dtype(self.dtype, grad_output, self)
    height, width = grad_output.shape[-2:]
    total = torch.zeros(self.shape, dtype=torch.float32, device=self.device)
    for i, rows in _windows(self.shape[-2], height):
        for j, columns in _windows(self.shape[-1], width):
            window = total[..., rows, columns]
            area = window.shape[-2] * window.shape[-1]
            window += (grad_output[..., i, j].to(torch.float32) / area)[..., None, None]
    return total.to(self.dtype)
