"""Launchers of softmax, normalisations and scans (csrc/bind_norm.cpp)."""

from __future__ import annotations

import math

import torch

from samebits.engines import family, watch
from samebits.engines.cpu import DTYPE_CODE, _cpu
from samebits.engines.cpu.numbers import written
from samebits.engines.cpu.reduce import KINDS, exp_sum, reduce_with_mean

# From this length on, a single row is worth several threads.
_LONG = 262144

_empty_like = torch.empty_like


def _rows(x: torch.Tensor) -> tuple[torch.Tensor, int, int, int]:
    """`x` with a contiguous last axis, the number of its rows, their length and their distance."""
    n = x.shape[-1]
    rows = x.numel() // n if n else 0
    if x.is_contiguous():
        return x, rows, n, n
    if x.ndim == 2 and x.stride(1) == 1:
        return x, rows, n, x.stride(0)
    return x.contiguous(), rows, n, n


def softmax(x: torch.Tensor, axis: int, dtype: torch.dtype, log: bool) -> torch.Tensor:
    """Softmax or log-softmax of `x` [any shape, at least one axis] along `axis` >= 0.

    Args:
        dtype: of the result: that of `x`, or float32.
    """
    shape = x.shape
    n = shape[axis]
    code, to = DTYPE_CODE[x.dtype], DTYPE_CODE[dtype]
    out = x.new_empty(*shape, dtype=dtype)  # faster to parse than a tuple
    if n == 0:
        return out
    portable = family.portable()
    if portable and axis < len(shape) - 1:
        moved = x.movedim(axis, -1).contiguous()
        return softmax(moved, len(shape) - 1, dtype, log).movedim(-1, axis).contiguous()
    if axis == len(shape) - 1:
        x, rows, n, stride = _rows(x)
        if portable or n < _LONG or rows >= _cpu.max_threads():
            _cpu.softmax(x.data_ptr(), code, rows, n, stride, out.data_ptr(), to, log, portable)
            return written(out)
        outer, inner = rows, 1
    else:
        x = x.contiguous()
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if x.numel() == 0:
        return out
    m, s = exp_sum(x, axis)
    _cpu.softmax_apply(
        x.data_ptr(),
        code,
        outer,
        n,
        inner,
        m.data_ptr(),
        s.data_ptr(),
        out.data_ptr(),
        to,
        log,
    )
    return out


def token_logprob(x: torch.Tensor, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """``log_softmax(x, -1)`` at one column per row.

    Args:
        x: [..., n]
        ids: [...] int64, contiguous.

    Returns:
        [...], or None if an id is not in [0, n).
    """
    x, rows, n, stride = _rows(x)
    out = x.new_empty(ids.shape, dtype=dtype)
    if not n:
        return out if not ids.numel() else None
    ok = _cpu.token_logprob(
        x.data_ptr(),
        DTYPE_CODE[x.dtype],
        rows,
        n,
        stride,
        ids.data_ptr(),
        out.data_ptr(),
        DTYPE_CODE[dtype],
        family.portable(),
    )
    return written(out) if ok else None


def _fp32(p: torch.Tensor | None) -> torch.Tensor | None:
    return None if p is None else p.to(torch.float32).contiguous()


def _ptr(p: torch.Tensor | None) -> int:
    return 0 if p is None else p.data_ptr()


def norm(
    x: torch.Tensor,
    n: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    *,
    centred: bool,
    statistics: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Layer norm (`centred`) or RMS norm over the last `n` elements of each row of `x`.

    Args:
        x: [..., n] as a whole number of rows; more trailing axes may make up n.
        weight, bias: n elements each, fp32, bf16 or fp16.
        statistics: dtype of the returned mean and reciprocal deviation (one per row); None: no
            statistics are returned.
    """
    dtype = x.dtype
    if x.is_contiguous():
        rows, stride = (x.numel() // n if n else 0), n
        out = _empty_like(x)
    else:
        if x.ndim == 2 and x.shape[1] == n and x.stride(1) == 1:
            rows, stride = x.shape[0], x.stride(0)
        else:
            x = x.contiguous()
            rows, stride = (x.numel() // n if n else 0), n
        out = x.new_empty(x.shape)
    same = (weight is None or weight.dtype is dtype) and (bias is None or bias.dtype is dtype)
    if not same:
        weight, bias = _fp32(weight), _fp32(bias)
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    mean = rstd = None
    if statistics is not None:
        mean, rstd = (x.new_empty(rows, dtype=torch.float32) for _ in range(2))
    _cpu.norm(
        centred,
        x.data_ptr(),
        DTYPE_CODE[dtype],
        rows,
        n,
        stride,
        0 if weight is None else weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        same,
        eps,
        out.data_ptr(),
        0 if mean is None else mean.data_ptr(),
        0 if rstd is None else rstd.data_ptr(),
        family.portable(),
    )
    written(out)
    if statistics is not None and mean is not None and rstd is not None:
        return out, mean.to(statistics), rstd.to(statistics)
    return out, None, None


def group_norm(
    x: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Group norm of `x` [batch, channels, ...], contiguous, and its statistics [batch, groups]."""
    batch, channels = x.shape[:2]
    space = math.prod(x.shape[2:])
    rows = x.view(batch, groups, channels // groups * space)
    var, mean = reduce_with_mean(KINDS["var"], rows, (2,), False, torch.float32, 0.0)
    rstd = reciprocal_deviation(var, eps)
    return affine(x, space, groups, mean, rstd, weight, bias), mean, rstd


def reciprocal_deviation(var: torch.Tensor, eps: float) -> torch.Tensor:
    """``1 / sqrt(var + eps)`` of an fp32 tensor. IEEE; torch.sqrt is not, it calls MKL's VML."""
    var = var.contiguous()
    out = torch.empty_like(var)
    _cpu.reciprocal_deviation(var.data_ptr(), out.data_ptr(), var.numel(), eps)
    return out


def affine(
    x: torch.Tensor,
    space: int,
    groups: int,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """``(x - mean) * rstd * weight + bias`` of `x` [batch, channels, space], contiguous.

    Args:
        groups: 0 if the statistics are one per channel, else they are [batch, groups].
        mean, rstd: fp32, contiguous.
    """
    out = x.new_empty(x.shape)
    weight, bias = _fp32(weight), _fp32(bias)
    if x.numel():
        _cpu.affine(
            x.data_ptr(),
            DTYPE_CODE[x.dtype],
            x.shape[0],
            x.shape[1],
            space,
            groups,
            mean.data_ptr(),
            rstd.data_ptr(),
            _ptr(weight),
            _ptr(bias),
            out.data_ptr(),
        )
    return written(out)


def scan(x: torch.Tensor, axis: int, dtype: torch.dtype, product: bool) -> torch.Tensor:
    """Running sum or product of `x` along `axis` >= 0; `dtype` is that of `x`, or float32."""
    x = x.contiguous()
    shape = x.shape
    out = x.new_empty(shape, dtype=dtype)
    if x.numel():
        _cpu.scan(
            product,
            x.data_ptr(),
            DTYPE_CODE[x.dtype],
            math.prod(shape[:axis]),
            shape[axis] if shape else 1,
            math.prod(shape[axis + 1 :]),
            out.data_ptr(),
            DTYPE_CODE[dtype],
        )
    return out


watch.offer(__name__, softmax, norm)
