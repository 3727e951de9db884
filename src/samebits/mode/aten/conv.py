"""Overrides of the convolutions: ``conv1d`` to ``conv_transpose3d`` are made of these by torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.mode.fallback import stock
from samebits.mode.registry import DENSE, aten
from samebits.ops import conv

_CONVOLUTION = stock("convolution")
_CONVOLUTION_BACKWARD = stock("convolution_backward")


@aten("convolution", key=DENSE)
def convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    shape = (stride, padding, dilation, transposed, output_padding, groups)
    if input.dtype not in DTYPE_CODE:
        return _CONVOLUTION.by_dtype(input.dtype, input, weight, bias, *shape)
    return _like(input, weight, conv.convolution(input, weight, bias, *shape))


@aten("convolution_backward", key=DENSE)
def convolution_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    shape = (stride, padding, dilation, transposed, output_padding, groups)
    if input.dtype not in DTYPE_CODE:
        return _CONVOLUTION_BACKWARD.by_dtype(
            input.dtype, grad_output, input, weight, bias_sizes, *shape, output_mask
        )
    return conv.convolution_backward(grad_output, input, weight, *shape, output_mask)


def _like(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`y` in the memory format that torch would give it: channels last if an operand is."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if form is None or (x.is_contiguous() and weight.is_contiguous()):
        return y
    for operand in (x, weight):
        if operand.is_contiguous(memory_format=form) and not operand.is_contiguous():
            return y.contiguous(memory_format=form)
    return y
