"""What a convolution is asked to do: sizes checked once, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from samebits.errors import ShapeError
from samebits.ops.linear.operands import check_tensor

Size = int | Sequence[int]


@dataclass(frozen=True)
class Geometry:
    """A convolution without its tensors' values.

    Attributes:
        kernel, stride, dilation: one number a spatial axis.
        before, after: zeros put on either side of a spatial axis (transposed: what is taken off).
        out: output size of the spatial axes.
        groups: groups of channels.
        transposed: whether it is a transposed convolution.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    out: tuple[int, ...]
    groups: int
    transposed: bool


def each(name: str, value: Size, dims: int, least: int) -> tuple[int, ...]:
    """`value` as one number an axis, none below `least`.

    Raises:
        ShapeError: it has another length or a smaller number.
    """
    sizes = (value,) * dims if isinstance(value, int) else tuple(int(v) for v in value)
    if len(sizes) == 1:
        sizes *= dims
    if len(sizes) != dims:
        raise ShapeError(f"convolution: {name} {sizes} must have {dims} numbers")
    if any(s < least for s in sizes):
        raise ShapeError(f"convolution: {name} {sizes} must not be below {least}")
    return sizes


def geometry(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    transposed: bool,
    output_padding: Size,
    groups: int,
    dims: int,
) -> Geometry:
    """Checks everything that can be wrong with a convolution of x [B, C, ...].

    Raises:
        ShapeError: shapes, strides, paddings or groups that do not fit.
        DTypeError: mixed or other dtypes; tensors that are not dense CPU tensors.
    """
    check_tensor("convolution", "x", x, x.dtype)
    check_tensor("convolution", "weight", weight, x.dtype)
    if not 1 <= dims <= 3 or x.dim() != dims + 2 or weight.dim() != dims + 2:
        raise ShapeError(
            f"convolution: x {tuple(x.shape)} and weight {tuple(weight.shape)} must have the same "
            "1, 2 or 3 spatial axes"
        )
    strides = each("stride", stride, dims, 1)
    dilations = each("dilation", dilation, dims, 1)
    if groups < 1 or weight.shape[0] % groups or x.shape[1] % groups:
        raise ShapeError(
            f"convolution: groups={groups} must divide {x.shape[1]} input channels and "
            f"{weight.shape[0]} filters"
        )
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.shape[1] != channels:
        raise ShapeError(
            f"convolution: x has {x.shape[1]} channels, weight {tuple(weight.shape)} with "
            f"groups={groups} takes {channels}"
        )
    filters = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None:
        check_tensor("convolution", "bias", bias, x.dtype)
        if bias.shape != (filters,):
            raise ShapeError(f"convolution: bias must be [{filters}], not {tuple(bias.shape)}")
    kernel = tuple(weight.shape[2:])
    span = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    if isinstance(padding, str):
        before, after = _named_padding(padding, span, strides)
    else:
        before = after = each("padding", padding, dims, 0)
    extra = each("output_padding", output_padding, dims, 0)
    sizes = x.shape[2:]
    if transposed:
        out = tuple(
            (i - 1) * s + 1 + n - 2 * p + e
            for i, s, n, p, e in zip(sizes, strides, span, before, extra, strict=True)
        )
        if any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
            raise ShapeError(
                f"convolution: output_padding {extra} must be below stride {strides} or "
                f"dilation {dilations}"
            )
    else:
        out = tuple(
            (i + b + a - 1 - n) // s + 1
            for i, s, n, b, a in zip(sizes, strides, span, before, after, strict=True)
        )
    if any(o < 1 for o in out) or any(k < 1 for k in kernel):
        raise ShapeError(
            f"convolution: no output for spatial sizes {tuple(sizes)}, kernel {kernel}, "
            f"padding {before}, dilation {dilations}"
        )
    return Geometry(kernel, strides, dilations, before, after, out, groups, transposed)


def _named_padding(
    padding: str, span: list[int], stride: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if padding == "valid":
        return (0,) * len(span), (0,) * len(span)
    if padding != "same":
        raise ShapeError(f"convolution: padding {padding!r} must be 'valid', 'same' or numbers")
    if any(s != 1 for s in stride):
        raise ShapeError("convolution: padding 'same' needs stride 1")
    return tuple(n // 2 for n in span), tuple(n - n // 2 for n in span)
