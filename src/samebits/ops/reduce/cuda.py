"""Reductions of CUDA tensors over any axes."""

from __future__ import annotations

import math

import torch

from samebits.engines.triton.rows import reduce as engine
from samebits.engines.triton.rows import softmax as exponential
from samebits.errors import ShapeError
from samebits.ops.gpu import MOST, matrix, schedule_for


def reduce(
    kind: str,
    x: torch.Tensor,
    axes: tuple[int, ...],
    keepdim: bool,
    dtype: torch.dtype,
    correction: float,
) -> torch.Tensor:
    """Reduces `x` over `axes`; `kind` as in `samebits.ops.reduce`."""
    rows = _rows(kind, x, axes)
    if kind == "logsumexp":
        y = _logsumexp(rows, dtype)
    elif kind in ("var", "std"):
        y = _deviation(
            kind, rows, engine.reduce_rows("mean", rows, torch.float32), dtype, correction
        )
    else:
        y = engine.reduce_rows(kind, rows, dtype)
    return y.view(_kept(x.shape, axes, keepdim))


def reduce_with_mean(
    kind: str, x: torch.Tensor, axes: tuple[int, ...], keepdim: bool, correction: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``var`` or ``std``, and the mean, both of x's dtype."""
    rows = _rows(kind, x, axes)
    mean = engine.reduce_rows("mean", rows, torch.float32)
    y = _deviation(kind, rows, mean, x.dtype, correction)
    shape = _kept(x.shape, axes, keepdim)
    return y.view(shape), mean.to(x.dtype).view(shape)


def _deviation(
    kind: str, rows: torch.Tensor, mean: torch.Tensor, dtype: torch.dtype, correction: float
) -> torch.Tensor:
    divisor = max(0.0, rows.shape[-1] - correction)
    return engine.reduce_rows(kind, rows, dtype, mean=mean, divisor=divisor)


def _logsumexp(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    n = rows.shape[-1]
    if not n:
        return torch.full(rows.shape[:-1], -math.inf, dtype=dtype, device=rows.device)
    flat = matrix("logsumexp", rows, n)
    if not len(flat):
        return torch.empty(rows.shape[:-1], dtype=dtype, device=rows.device)
    return exponential.row_numbers(flat, None, dtype, schedule_for("logsumexp", flat, dtype))


def _rows(kind: str, x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """[rows, n] or [outer, inner, n]: the reduced axes, in row-major order, last.

    A view where the strides of the other axes merge into at most two and those of the reduced axes
    into one; else a copy, which changes no bits.
    """
    kept = [a for a in range(x.dim()) if a not in axes]
    n = math.prod(x.shape[a] for a in axes)
    rows = math.prod(x.shape[a] for a in kept)
    if max(rows, n) > MOST:
        raise ShapeError(f"{kind}: {rows} rows of {n} elements are too many: cut them up")
    moved = x.permute(*kept, *axes)
    if not x.numel():
        return moved.reshape(rows, n)
    lead, reduced = _merged(moved, 0, len(kept)), _merged(moved, len(kept), x.dim())
    if len(lead) > 2 or len(reduced) > 1:
        return moved.reshape(rows, n)
    lead = lead or [(1, 0)]
    sizes, strides = zip(*lead, *(reduced or [(1, 1)]), strict=True)
    return x.as_strided(sizes, strides)


def _merged(x: torch.Tensor, start: int, stop: int) -> list[tuple[int, int]]:
    """(size, stride) of axes start to stop - 1, neighbours merged where one stride walks both."""
    merged: list[tuple[int, int]] = []
    for size, stride in zip(x.shape[start:stop], x.stride()[start:stop], strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def _kept(shape: torch.Size, axes: tuple[int, ...], keepdim: bool) -> list[int]:
    if keepdim:
        return [1 if a in axes else size for a, size in enumerate(shape)]
    return [size for a, size in enumerate(shape) if a not in axes]
