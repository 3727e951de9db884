"""Launcher of reductions (csrc/bind_reduce.cpp): any strides, any axes, one tree a family."""

from __future__ import annotations

import math

import torch

from samebits.engines import family, watch
from samebits.engines.cpu import DTYPE_CODE, _cpu
from samebits.engines.cpu.numbers import written

KINDS: dict[str, int] = {
    name: code
    for code, name in enumerate(
        (
            "sum",
            "mean",
            "var",
            "std",
            "prod",
            "nansum",
            "norm0",
            "norm1",
            "norm2",
            "norm_inf",
            "norm_neg_inf",
            "logsumexp",
            "max",
            "exp_sum",
        )
    )
}


def reduce(
    kind: int,
    x: torch.Tensor,
    axes: tuple[int, ...],
    keepdim: bool,
    dtype: torch.dtype,
    correction: float = 0.0,
) -> torch.Tensor:
    """Reduces `x` over `axes` (each once, counted from the front) into a tensor of `dtype`.

    Args:
        kind: a value of `KINDS`.
        x: fp32, bf16 or fp16 with any strides; `dtype` is one of those as well.
        correction: subtracted from the number of elements in ``var`` and ``std``.
    """
    shape = x.shape
    kept = _kept(shape, axes, keepdim)
    if kind == KINDS["logsumexp"] and family.portable():
        return _logsumexp(x, axes, dtype).view(kept)
    # Unpacked sizes are faster to parse than a tuple.
    out = x.new_empty(*kept, dtype=dtype) if kept else x.new_empty((), dtype=dtype)
    _cpu.reduce(
        kind,
        x.data_ptr(),
        DTYPE_CODE[x.dtype],
        shape,
        x.stride(),
        axes,
        out.data_ptr(),
        DTYPE_CODE[dtype],
        correction,
        0,
        family.portable(),
    )
    return written(out)


def _logsumexp(x: torch.Tensor, axes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """logsumexp of the portable family, where every leaf has its own maximum."""
    kept = [a for a in range(x.dim()) if a not in axes]
    n = math.prod(x.shape[a] for a in axes)
    count = math.prod(x.shape[a] for a in kept)
    rows = x.permute(*kept, *axes).reshape(count, n).contiguous()
    out = x.new_empty(count, dtype=dtype)
    _cpu.wide_logsumexp(
        rows.data_ptr(), DTYPE_CODE[x.dtype], count, n, n, out.data_ptr(), DTYPE_CODE[dtype]
    )
    return written(out)


def reduce_with_mean(
    kind: int,
    x: torch.Tensor,
    axes: tuple[int, ...],
    keepdim: bool,
    dtype: torch.dtype,
    correction: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``var`` or ``std`` together with the mean, which is computed anyway."""
    shape = _kept(x.shape, axes, keepdim)
    out, mean = x.new_empty(shape, dtype=dtype), x.new_empty(shape, dtype=dtype)
    _cpu.reduce(
        kind,
        x.data_ptr(),
        DTYPE_CODE[x.dtype],
        x.shape,
        x.stride(),
        axes,
        out.data_ptr(),
        DTYPE_CODE[dtype],
        correction,
        mean.data_ptr(),
        family.portable(),
    )
    return written(out), written(mean)


def exp_sum(x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum m of `x` along `axis` and the sum of ``exp(x - m)``, both fp32, axis dropped."""
    shape = _kept(x.shape, (axis,), False)
    total, maximum = (x.new_empty(shape, dtype=torch.float32) for _ in range(2))
    _cpu.reduce(
        KINDS["exp_sum"],
        x.data_ptr(),
        DTYPE_CODE[x.dtype],
        x.shape,
        x.stride(),
        (axis,),
        total.data_ptr(),
        0,
        0.0,
        maximum.data_ptr(),
        False,
    )
    return maximum, total


def _kept(shape: torch.Size, axes: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    rank = len(shape)
    if not keepdim:
        if len(axes) == 1:
            (axis,) = axes
            return shape[:-1] if axis == rank - 1 else shape[:axis] + shape[axis + 1 :]
        if len(axes) == rank:
            return ()
        return tuple(size for i, size in enumerate(shape) if i not in axes)
    return tuple(1 if i in axes else size for i, size in enumerate(shape))


watch.offer(__name__, reduce)
