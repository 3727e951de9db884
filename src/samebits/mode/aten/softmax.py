"""Overrides for softmax and log-softmax, forward and backward.

The gradients are elementwise fp32 arithmetic (one IEEE operation at a time) and covered sums.
"""

from __future__ import annotations

from typing import Any

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.mode.fallback import stock
from samebits.mode.registry import DENSE, aten
from samebits.ops import reduce
from samebits.ops.softmax import run as run_softmax

_F32 = torch.float32

_SOFTMAX, _LOG_SOFTMAX = stock("_softmax"), stock("_log_softmax")
_SOFTMAX_BACKWARD = stock("_softmax_backward_data")
_LOG_SOFTMAX_BACKWARD = stock("_log_softmax_backward_data")
_MASKED_SOFTMAX = stock("_masked_softmax")


@aten("_softmax", key=DENSE)
def softmax_forward(self: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _SOFTMAX.by_dtype(self.dtype, self, dim, half_to_float)
    return run_softmax(self, dim, _F32 if half_to_float else None, False)


@aten("_log_softmax", key=DENSE)
def log_softmax_forward(self: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _LOG_SOFTMAX.by_dtype(self.dtype, self, dim, half_to_float)
    return run_softmax(self, dim, _F32 if half_to_float else None, True)


@aten("_softmax_backward_data", key=DENSE)
def softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> Any:
    if output.dtype not in DTYPE_CODE:
        return _SOFTMAX_BACKWARD.by_dtype(output.dtype, grad_output, output, dim, input_dtype)
    g, y = grad_output.to(_F32), output.to(_F32)
    return ((g - reduce.run("sum", g * y, dim, True)) * y).to(input_dtype)


@aten("_log_softmax_backward_data", key=DENSE)
def log_softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> Any:
    if output.dtype not in DTYPE_CODE:
        return _LOG_SOFTMAX_BACKWARD.by_dtype(output.dtype, grad_output, output, dim, input_dtype)
    g = grad_output.to(_F32)
    return (g - torch.exp(output.to(_F32)) * reduce.run("sum", g, dim, True)).to(input_dtype)


@aten("_masked_softmax", key=DENSE)
def masked_softmax(
    self: torch.Tensor, mask: torch.Tensor, dim: int | None = None, mask_type: int | None = None
) -> Any:
    return _MASKED_SOFTMAX.uncovered(
        "the masked softmax of nested attention has no contract", self, mask, dim, mask_type
    )
