"""Launchers for selection, ordered scatter and embedding bags (csrc/order.cpp)."""

from __future__ import annotations

from typing import Literal

import torch

from samebits.engines.cpu import DTYPE_CODE, _cpu

Combine = Literal["add", "mul", "amax", "amin"]
_COMBINE: dict[str, int] = {"add": 0, "mul": 1, "amax": 2, "amin": 3}


def topk(x: torch.Tensor, k: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The k extreme values of each row of `x` [rows, n] in order, ties to the lowest index.

    Returns values [rows, k] in x's dtype and indices [rows, k] int64.
    """
    rows, n = x.shape
    values = x.new_empty((rows, k))
    indices = x.new_empty((rows, k), dtype=torch.int64)
    if rows and k:
        row_stride, stride = x.stride()
        _cpu.topk(
            DTYPE_CODE[x.dtype],
            x.data_ptr(),
            rows,
            row_stride,
            stride,
            n,
            k,
            largest,
            values.data_ptr(),
            indices.data_ptr(),
        )
    return values, indices


def scatter(
    dst: torch.Tensor,
    positions: torch.Tensor,
    src: torch.Tensor,
    combine: Combine = "add",
    alpha: float = 1.0,
) -> None:
    """``dst[positions[i]] = combine(dst[positions[i]], alpha * src[i])`` for i ascending, in place.

    Args:
        dst: [places, inner] contiguous accumulators, float32 (or float64 with a float64 `src`).
        positions: [n] int64, contiguous; negative positions are skipped.
        src: [n, inner] with unit stride along `inner`; a stride of 0 along n repeats one row.
    """
    n, inner = src.shape
    if not n or not inner:
        return
    args = (
        dst.data_ptr(),
        positions.data_ptr(),
        src.data_ptr(),
        n,
        inner,
        src.stride(0),
        alpha,
    )
    if dst.dtype is torch.float64:
        _cpu.scatter_f64(_COMBINE[combine], *args)
    else:
        _cpu.scatter(_COMBINE[combine], DTYPE_CODE[src.dtype], *args)


def narrow(acc: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`acc` (float32, contiguous) rounded once to `dtype`; every NaN becomes the canonical one."""
    out = acc.new_empty(acc.shape, dtype=dtype)
    if acc.numel():
        _cpu.narrow(DTYPE_CODE[dtype], acc.data_ptr(), out.data_ptr(), acc.numel())
    return out


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    edges: torch.Tensor,
    mode: int,
    per_sample: torch.Tensor | None,
    padding_idx: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bags of rows of `weight` [rows, dim] (unit stride along dim).

    Args:
        edges: [bags + 1] int64: bag b holds items edges[b] .. edges[b+1].
        mode: 0 sum, 1 mean, 2 max.

    Returns:
        bags [bags, dim], items counted per bag [bags] int64, and for max the row chosen per element
        [bags, dim] int64 (-1 in an empty bag).
    """
    bags, dim = edges.numel() - 1, weight.shape[1]
    out = weight.new_empty((bags, dim))
    counts = weight.new_empty(bags, dtype=torch.int64)
    chosen = weight.new_full((bags, dim), -1, dtype=torch.int64) if mode == 2 else counts
    if bags:
        _cpu.embedding_bag(
            DTYPE_CODE[weight.dtype],
            weight.data_ptr(),
            weight.stride(0),
            dim,
            indices.data_ptr(),
            edges.data_ptr(),
            0 if per_sample is None else per_sample.data_ptr(),
            bags,
            mode,
            padding_idx,
            out.data_ptr(),
            counts.data_ptr(),
            chosen.data_ptr(),
        )
    return out, counts, chosen
