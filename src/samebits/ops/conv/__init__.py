"""Convolutions as matrix products with a fixed tree.

Output [n, o, p] is the lanes(16) product (see `samebits.ops.linear`) of filter o and the window of
image n at position p, with k running over (channel of the group, kernel positions) in row-major
order and padding taking part as +0; then the bias in fp32 and one rounding. It depends on its own
window and filter only, so a batch of one gives the bits of a batch of many.

A transposed convolution is the convolution of the input with zeros put between its elements and the
kernel reversed: the same tree, over the window of the output element. Gradients are made of the
same parts; that of the weight reduces over (image, position).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samebits.ops.conv.arguments import Geometry, Size, geometry
from samebits.ops.conv.lowering import convolve, grad_input, grad_weight, transpose
from samebits.ops.linear.operands import needs_graph, plain
from samebits.ops.reduce import run as reduce

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "convolution_backward",
]


def conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> torch.Tensor:
    """x [B, C, L] or [C, L], weight [O, C/groups, k], bias [O] -> [B, O, L'], L' as in torch.

    float32, bfloat16 or float16 on the CPU, any strides. Differentiable.

    Raises:
        ShapeError: shapes, strides, paddings or groups that do not fit.
        DTypeError: mixed or other dtypes; tensors that are not dense CPU tensors.
    """
    return _conv(1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> torch.Tensor:
    """x [B, C, H, W] or [C, H, W], weight [O, C/groups, kh, kw]; see `conv1d`."""
    return _conv(2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> torch.Tensor:
    """x [B, C, D, H, W] or [C, D, H, W], weight [O, C/groups, kd, kh, kw]; see `conv1d`."""
    return _conv(3, x, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> torch.Tensor:
    """x [B, C, L] or [C, L], weight [C, O/groups, k], bias [O] -> [B, O, L']; see `conv1d`."""
    return _conv(1, x, weight, bias, stride, padding, dilation, groups, output_padding)


def conv_transpose2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> torch.Tensor:
    """x [B, C, H, W] or [C, H, W], weight [C, O/groups, kh, kw]; see `conv1d`."""
    return _conv(2, x, weight, bias, stride, padding, dilation, groups, output_padding)


def conv_transpose3d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> torch.Tensor:
    """x [B, C, D, H, W] or [C, D, H, W], weight [C, O/groups, kd, kh, kw]; see `conv1d`."""
    return _conv(3, x, weight, bias, stride, padding, dilation, groups, output_padding)


def _conv(
    dims: int,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
    output_padding: Size | None = None,
) -> torch.Tensor:
    x, weight = plain(x), plain(weight)
    bias = None if bias is None else plain(bias)
    single = x.dim() == dims + 1
    images = x[None] if single else x
    transposed = output_padding is not None
    geo = geometry(
        images,
        weight,
        bias,
        stride,
        padding,
        dilation,
        transposed,
        output_padding or 0,
        groups,
        dims,
    )
    if needs_graph(images, weight, bias):
        y: torch.Tensor = _Convolution.apply(  # type: ignore[no-untyped-call]
            images, weight, bias, geo
        )
    else:
        y = _forward(images, weight, bias, geo)
    return y[0] if single else y


def _forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geo: Geometry
) -> torch.Tensor:
    return (transpose if geo.transposed else convolve)(x, weight, bias, geo)


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """``aten::convolution`` without autograd; x [B, C, ...] with 1 to 3 spatial axes."""
    geo = geometry(
        x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, x.dim() - 2
    )
    return _forward(x, weight, bias, geo)


def convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    needs: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """``aten::convolution_backward``: gradients of x, weight and bias, None where not needed."""
    geo = geometry(
        x, weight, None, stride, padding, dilation, transposed, output_padding, groups, x.dim() - 2
    )
    return _backward(grad, x, weight, geo, needs)


def _backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    geo: Geometry,
    needs: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    return (
        grad_input(grad, x, weight, geo) if needs[0] else None,
        grad_weight(grad, x, weight, geo) if needs[1] else None,
        reduce("sum", grad, [0, *range(2, grad.dim())]) if needs[2] else None,
    )


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        geo: Geometry,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geo = geo
        return _forward(x, weight, bias, geo)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        return (*_backward(plain(grads[0]), x, weight, ctx.geo, needs), None)
