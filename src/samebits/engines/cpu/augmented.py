"""Launchers of the augmented operations and of sums in bins (csrc/augmented.cpp)."""

from __future__ import annotations

import torch

from samebits.contract.exact.augmented import AugmentedOp
from samebits.engines.cpu import _cpu

_CODES: dict[AugmentedOp, int] = {"addition": 0, "subtraction": 1, "multiplication": 2}


def augmented(
    op: AugmentedOp, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result and error of contiguous fp32 or fp64 tensors of one shape and dtype."""
    result, error = torch.empty_like(x), torch.empty_like(x)
    _cpu.augmented(
        _CODES[op], x.dtype is torch.float64, x.data_ptr(), y.data_ptr(), result.data_ptr(),
        error.data_ptr(), x.numel(),
    )  # fmt: skip
    return result, error


def binned_sum(x: torch.Tensor) -> torch.Tensor:
    """The sum along the last axis of x [R, n], fp32 or fp64."""
    x = x if x.shape[1] <= 1 or x.stride(1) == 1 else x.contiguous()
    rows, n = x.shape
    out = x.new_empty(rows)
    _cpu.binned_sum(x.dtype is torch.float64, x.data_ptr(), rows, x.stride(0), n, out.data_ptr())
    return out
