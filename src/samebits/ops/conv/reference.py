"""Convolutions by their definition, one window at a time, in NumPy. Slow."""

from __future__ import annotations

import itertools
from types import EllipsisType

import numpy as np
import torch

from samebits.contract import numerics
from samebits.ops.linear.reference import narrow, widen


def conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> torch.Tensor:
    """x [B, C, ...], weight [O, C/groups, k...]; stride, padding, dilation for every axis."""
    images, filters = widen(x), widen(weight)
    dims = images.ndim - 2
    images = np.pad(images, [(0, 0), (0, 0)] + [(padding, padding)] * dims)
    kernel = filters.shape[2:]
    out = [
        (size - dilation * (k - 1) - 1) // stride + 1
        for size, k in zip(images.shape[2:], kernel, strict=True)
    ]
    result = np.zeros((images.shape[0], filters.shape[0], *out), np.float32)
    per_group, channels = filters.shape[0] // groups, filters.shape[1]
    for group in range(groups):
        mine = slice(group * per_group, (group + 1) * per_group)
        w = filters[mine].reshape(per_group, -1)
        for at in itertools.product(*map(range, out)):
            window = tuple(
                slice(p * stride, p * stride + dilation * (k - 1) + 1, dilation)
                for p, k in zip(at, kernel, strict=True)
            )
            where: tuple[slice, ...] = (
                slice(None), slice(group * channels, (group + 1) * channels), *window,
            )  # fmt: skip
            seen = images[where]
            dots = numerics.lanes16_dot(seen.reshape(len(images), -1), w)
            to: tuple[slice | int, ...] = (slice(None), mine, *at)
            result[to] = dots
    if bias is not None:
        result = numerics.add32(result, widen(bias).reshape(1, -1, *[1] * dims))
    return narrow(result, x.dtype)


def conv_transpose(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> torch.Tensor:
    """x [B, C, ...], weight [C, O/groups, k...], output_padding 0: the definition in `ops.conv`."""
    sizes = [(s - 1) * stride + 1 for s in x.shape[2:]]
    spread = x.new_zeros(*x.shape[:2], *sizes)
    spread[every([slice(None, None, stride)] * len(sizes))] = x
    parts = [part.flip(list(range(2, part.dim()))).transpose(0, 1) for part in weight.chunk(groups)]
    span = dilation * (weight.shape[2] - 1)
    if padding > span:
        cut = padding - span
        spread = spread[every([slice(cut, -cut)] * len(sizes))]
    return conv(spread, torch.cat(parts), bias, 1, max(0, span - padding), dilation, groups)


def every(spatial: list[slice]) -> tuple[EllipsisType | slice, ...]:
    """An index of all images and channels, and of the spatial axes given."""
    return (..., *spatial)
