"""RMS norm, layer norm, group norm, and batch norm with given statistics.

Everything in fp32 from exactly widened inputs, sums by the row tree (`samebits.ops.reduce`) over
the normalised elements in row-major order, one rounding at the end:

- rms_norm: ``r = 1 / sqrt(sum(fma(x, x, acc)) / n + eps)``, ``t = x * r``;
- layer_norm, group_norm: ``mean = sum(x) / n``; ``d = x - mean``;
  ``r = 1 / sqrt(sum(fma(d, d, acc)) / n + eps)``; ``t = d * r``;
- batch_norm: ``r = 1 / sqrt(var + eps)``, ``t = (x - mean) * r``;

then ``fma(t, weight, bias)``, or ``t * weight``, or ``t + bias``. Division and root are IEEE.
A residual is added first, rounded to the dtype: the sum is what is normalised. CUDA tensors have
the same formulas with the row tree of their device class; group and batch norm are for the CPU.
Batch norm that takes its statistics from the batch depends on the batch by definition: refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import overload

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import norm as engine
from samebits.errors import ShapeError
from samebits.ops.checks import engine_tensor, one_device

#: What torch takes for eps=None in rms_norm, whatever the dtype: it computes in fp32.
EPS = torch.finfo(torch.float32).eps


def row_length(
    op: str,
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    *parameters: torch.Tensor | None,
) -> int:
    """Elements in one normalised row.

    Raises:
        ShapeError: `normalized_shape` is not the end of x's shape, or a parameter has another one.
    """
    if len(normalized_shape) == 1:  # the common case, short
        (n,) = normalized_shape
        if x.dim() and x.size(-1) == n:
            for p in parameters:
                if p is not None and (p.dim() != 1 or p.numel() != n):
                    break
            else:
                return n
    shape = tuple(normalized_shape)
    if not shape or x.shape[x.dim() - len(shape) :] != shape:
        raise ShapeError(f"{op}: {tuple(x.shape)} does not end in normalized_shape {shape}")
    for p in parameters:
        if p is not None and p.shape != shape:
            raise ShapeError(f"{op}: a weight or bias of shape {tuple(p.shape)}, not {shape}")
    return math.prod(shape)


def _parameters(
    op: str, *parameters: torch.Tensor | None, gpu: bool = False
) -> list[torch.Tensor | None]:
    """The parameters, as an engine can read them."""
    return [None if p is None else engine_tensor(op, p, gpu=gpu) for p in parameters]


@overload
def rms_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = ...,
    eps: float | None = ...,
    *,
    residual: None = ...,
) -> torch.Tensor: ...
@overload
def rms_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = ...,
    eps: float | None = ...,
    *,
    residual: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def rms_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    residual: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """RMS norm over the last ``len(normalized_shape)`` axes.

    Args:
        x: [..., *normalized_shape] fp32, bf16 or fp16; on a GPU: [rows, n] after flattening.
        weight: `normalized_shape`, any of those dtypes.
        eps: default: the machine epsilon of fp32.
        residual: shape and dtype of `x`, added to it first. The sum is rounded to the dtype and
            then normalised: the bits of the two operations one after the other.

    Returns:
        A contiguous tensor with shape and dtype of `x`; with `residual`, also ``x + residual``.

    Raises:
        DTypeError, ShapeError: see `checks` and `row_length`.
    """
    eps = EPS if eps is None else eps
    return _norm("rms_norm", x, normalized_shape, weight, None, eps, residual)


@overload
def layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = ...,
    bias: torch.Tensor | None = ...,
    eps: float = ...,
    *,
    residual: None = ...,
) -> torch.Tensor: ...
@overload
def layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = ...,
    bias: torch.Tensor | None = ...,
    eps: float = ...,
    *,
    residual: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Layer norm over the last ``len(normalized_shape)`` axes; arguments as `rms_norm`."""
    return _norm("layer_norm", x, normalized_shape, weight, bias, eps, residual)


def _norm(
    op: str,
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    n = _usual(x, normalized_shape, weight, bias, residual)
    if n:
        total = x if residual is None else torch.add(x, residual)
        y = engine.norm(total, n, weight, bias, eps, centred=op == "layer_norm")[0]
        return y if residual is None else (y, total)
    x = engine_tensor(op, x, gpu=True)
    weight, bias, residual = _parameters(op, weight, bias, residual, gpu=True)
    n = row_length(op, x, normalized_shape, weight, bias)
    if residual is not None and (residual.shape != x.shape or residual.dtype is not x.dtype):
        raise ShapeError(
            f"{op}: the residual is {tuple(residual.shape)} {residual.dtype}, and x is "
            f"{tuple(x.shape)} {x.dtype}"
        )
    if x.is_cuda:
        from samebits.ops.norm import cuda

        return cuda.norm(op, x, n, weight, bias, eps, residual)
    one_device(op, x, weight, bias, residual)
    if residual is None:
        return engine.norm(x, n, weight, bias, eps, centred=op == "layer_norm")[0]
    total = torch.add(x, residual)
    return engine.norm(total, n, weight, bias, eps, centred=op == "layer_norm")[0], total


def _usual(
    x: torch.Tensor,
    shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> int:
    """The row length of the usual call, in as few steps as possible: one dtype, on a CPU, no
    gradient, no bias; 0 for every other call.
    """
    if (
        len(shape) != 1
        or weight is None
        or bias is not None
        or not (x.is_cpu and weight.is_cpu)
        or x.dtype not in DTYPE_CODE
        or weight.dtype is not x.dtype
        or x.layout is not torch.strided
        or weight.layout is not torch.strided
        or x.is_neg()
        or weight.is_neg()
        or torch.is_grad_enabled()
        or (residual is not None and not _alike(x, residual))
    ):
        return 0
    n = shape[0]
    return n if x.dim() and x.shape[-1] == n and weight.shape == (n,) else 0


def _alike(x: torch.Tensor, residual: torch.Tensor) -> bool:
    return (
        residual.is_cpu
        and residual.dtype is x.dtype
        and residual.layout is torch.strided
        and residual.shape == x.shape
        and not residual.is_neg()
    )


def group_norm(
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Group norm of `x` [batch, channels, ...] over groups of neighbouring channels.

    Args:
        x: fp32, bf16 or fp16.
        weight, bias: [channels].

    Raises:
        ShapeError: channels do not divide into groups, or a parameter has another shape.
        DTypeError: see `checks`.
    """
    x = engine_tensor("group_norm", x)
    weight, bias = _parameters("group_norm", weight, bias)
    if x.dim() < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise ShapeError(f"group_norm: {tuple(x.shape)} does not divide into {num_groups} groups")
    _per_channel("group_norm", x.shape[1], weight, bias)
    return engine.group_norm(x.contiguous(), num_groups, weight, bias, eps)[0]


def batch_norm(
    x: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Batch norm of `x` [batch, channels, ...] with given statistics (evaluation mode).

    Args:
        x: fp32, bf16 or fp16.
        running_mean, running_var, weight, bias: [channels].

    Raises:
        ShapeError: a statistic or parameter has another shape.
        DTypeError: see `checks`.
    """
    x = engine_tensor("batch_norm", x)
    mean, var = (engine_tensor("batch_norm", p) for p in (running_mean, running_var))
    weight, bias = _parameters("batch_norm", weight, bias)
    if x.dim() < 2:
        raise ShapeError(f"batch_norm: {tuple(x.shape)} has no channel axis")
    _per_channel("batch_norm", x.shape[1], mean, var, weight, bias)
    return batch_norm_with(x, mean, var, weight, bias, eps)[0]


def batch_norm_with(
    x: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Batch norm, and the fp32 mean and reciprocal deviation that it used."""
    mean = running_mean.to(torch.float32).contiguous()
    rstd = engine.reciprocal_deviation(running_var.to(torch.float32), eps)
    space = math.prod(x.shape[2:])
    return engine.affine(x.contiguous(), space, 0, mean, rstd, weight, bias), mean, rstd


def _per_channel(op: str, channels: int, *parameters: torch.Tensor | None) -> None:
    for p in parameters:
        if p is not None and p.shape != (channels,):
            raise ShapeError(f"{op}: a parameter of shape {tuple(p.shape)}, not ({channels},)")
