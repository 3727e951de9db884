"""Convolutions turned into matrix products. Copies and products only: no sum is taken here."""

from __future__ import annotations

import math
from dataclasses import replace
from types import EllipsisType

import torch
import torch.nn.functional as F

from samebits.ops.conv.arguments import Geometry
from samebits.ops.matmul.product import engine_of

#: Elements of the window matrix that exist at a time, by device: a part of the contract on a GPU,
#: where the number of columns may decide the tree.
_CHUNK = {"cpu": 4 << 20, "cuda": 64 << 20}


def convolve(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geo: Geometry
) -> torch.Tensor:
    """x [B, C, ...], weight [O, C/G, k...] -> [B, O, out...]."""
    images, groups, filters = x.shape[0], geo.groups, weight.shape[0]
    k, positions = weight[0].numel() if filters else 0, math.prod(geo.out)
    out = x.new_empty(images, filters, *geo.out)
    if out.numel() == 0:
        return out
    flat_out = out.view(images * groups, filters // groups, positions)
    matrix = weight.reshape(groups, filters // groups, k)
    column = None if bias is None else bias.reshape(groups, filters // groups, 1)
    seen = windows(x, geo)
    row = positions // geo.out[0]  # positions of one step along the first spatial axis
    per_image = max(1, groups * k * positions)
    chunk, bmm = _CHUNK[x.device.type], engine_of(x).bmm
    step = max(1, chunk // per_image)
    rows = geo.out[0] if step > 1 else max(1, min(geo.out[0], chunk // (groups * k * row or 1)))
    axis = 2 + len(geo.kernel)
    for n in range(0, images, step):
        count = min(step, images - n)
        a, c = matrix, column
        if groups == 1:
            a = matrix.expand(count, -1, -1)
        else:
            a = matrix.repeat(count, 1, 1)
            c = None if column is None else column.repeat(count, 1, 1)
        for r in range(0, geo.out[0], rows):
            size = min(rows, geo.out[0] - r)
            part = seen[n : n + count].narrow(axis, r, size)
            b = part.reshape(count * groups, k, size * row)
            to = flat_out[n * groups : (n + count) * groups, :, r * row : (r + size) * row]
            bmm(a, b, c, out=to)
    return out


def windows(x: torch.Tensor, geo: Geometry) -> torch.Tensor:
    """The view [B, C, k..., out...] of padded x: element of the window, then window."""
    if any(geo.before) or any(geo.after):
        sides = zip(reversed(geo.before), reversed(geo.after), strict=True)
        x = F.pad(x, [p for side in sides for p in side])
    strides = x.stride()
    inner = [s * d for s, d in zip(strides[2:], geo.dilation, strict=True)]
    outer = [s * d for s, d in zip(strides[2:], geo.stride, strict=True)]
    return x.as_strided(
        (*x.shape[:2], *geo.kernel, *geo.out), (*strides[:2], *inner, *outer), x.storage_offset()
    )


def transpose(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geo: Geometry
) -> torch.Tensor:
    """x [B, C, ...], weight [C, O/G, k...] -> [B, O, out...]: spread x out, reverse the kernel."""
    spread = list(x.shape)
    for i, (size, step) in enumerate(zip(x.shape[2:], geo.stride, strict=True)):
        spread[2 + i] = max(0, (size - 1) * step + 1)
    wide = x
    if tuple(spread) != tuple(x.shape):
        wide = x.new_zeros(spread)
        wide[spread_index(geo.stride)] = x
    # Output position o sees inputs o - span + before .. o + before; crop where that is inside.
    span = [d * (k - 1) for d, k in zip(geo.dilation, geo.kernel, strict=True)]
    before = tuple(n - p for n, p in zip(span, geo.before, strict=True))
    after = tuple(
        o + n - b - s for o, n, b, s in zip(geo.out, span, before, spread[2:], strict=True)
    )
    inner = replace(
        geo,
        stride=(1,) * len(span),
        before=before,
        after=after,
        transposed=False,
    )
    return convolve(wide, reversed_kernel(weight, geo.groups), bias, inner)


def spread_index(stride: tuple[int, ...]) -> tuple[EllipsisType | slice, ...]:
    """Selects every `stride`-th element of the last axes."""
    return (..., *(slice(None, None, s) for s in stride))


def reversed_kernel(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """[C, O/G, k...] -> [O, C/G, k...], the kernel axes reversed."""
    c, o = weight.shape[:2]
    kernel = weight.shape[2:]
    flipped = weight.flip(list(range(2, weight.dim())))
    grouped = flipped.reshape(groups, c // groups, o, *kernel).transpose(1, 2)
    return grouped.reshape(groups * o, c // groups, *kernel)


def grad_input(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, geo: Geometry
) -> torch.Tensor:
    """The gradient of x: the transposed of a convolution, and the other way round."""
    swapped = replace(geo, out=tuple(x.shape[2:]), transposed=not geo.transposed)
    if geo.transposed:
        extra = tuple(
            (i - 1) * s + 1 + d * (k - 1) - b - o
            for i, s, d, k, b, o in zip(
                x.shape[2:], geo.stride, geo.dilation, geo.kernel, geo.before, grad.shape[2:],
                strict=True,
            )
        )  # fmt: skip
        return convolve(grad, weight, None, replace(swapped, after=extra))
    return transpose(grad, weight, None, swapped)


def grad_weight(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, geo: Geometry
) -> torch.Tensor:
    """The gradient of the weight: one product over (image, position), in row-major order."""
    if geo.transposed:  # the roles of input and gradient are exchanged
        after = tuple(
            (i - 1) * s + 1 + d * (k - 1) - b - o
            for i, s, d, k, b, o in zip(
                x.shape[2:], geo.stride, geo.dilation, geo.kernel, geo.before, grad.shape[2:],
                strict=True,
            )
        )  # fmt: skip
        inner = replace(geo, out=tuple(x.shape[2:]), after=after, transposed=False)
        return grad_weight(x, grad, weight, inner)
    groups, kernel = geo.groups, geo.kernel
    filters, channels = weight.shape[:2]
    seen = windows(x, geo)
    images, positions = grad.shape[0], math.prod(geo.out)
    left = grad.reshape(images, groups, filters // groups, positions)
    left = left.permute(1, 2, 0, 3).reshape(groups, filters // groups, images * positions)
    out = weight.new_empty(groups, filters // groups, channels, math.prod(kernel))
    chunk = _CHUNK[x.device.type]
    step = max(1, chunk // max(1, groups * math.prod(kernel) * images * positions))
    for c in range(0, channels, step):
        size = min(step, channels - c)
        part = seen.view(images, groups, channels, *seen.shape[2:])[:, :, c : c + size]
        right = part.permute(
            1, 2, *range(3, 3 + len(kernel)), 0, *range(3 + len(kernel), part.dim())
        )
        right = right.reshape(groups, size * math.prod(kernel), images * positions)
        product = engine_of(left).bmm(left, right.mT)
        out[:, :, c : c + size] = product.view(groups, filters // groups, size, -1)
    return out.reshape(weight.shape)
