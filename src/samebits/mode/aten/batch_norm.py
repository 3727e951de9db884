"""Overrides for batch norm with given statistics and for weight norm, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samebits.engines.cpu import norm as engine
from samebits.mode.aten.norm import covered as _covered
from samebits.mode.aten.norm import in_format_of
from samebits.mode.fallback import stock
from samebits.mode.registry import DENSE, aten
from samebits.ops import norm, reduce
from samebits.ops.norm import composed

_F32 = torch.float32

# ---- batch norm with given statistics -----------------------------------------------------------

_NATIVE_BATCH_NORM = stock("native_batch_norm")
_BATCH_NORM_LEGIT = stock("_native_batch_norm_legit")
_BATCH_NORM_NO_STATS = stock("_native_batch_norm_legit.no_stats")
_BATCH_NORM_BACKWARD = stock("native_batch_norm_backward")
_BATCH_STATISTICS = "batch norm in training mode takes its statistics from the whole batch"


def _batch_norm(name: Any, input: torch.Tensor, *rest: Any) -> Any:
    weight, bias, mean, var, training, _, eps = rest
    if training:
        return name.uncovered(_BATCH_STATISTICS, input, *rest)
    if not _covered(input, weight, bias, mean, var):
        return name.uncovered(f"no contract covers {input.dtype} here", input, *rest)
    if input.is_cuda:
        out = composed.batch_norm(input, mean, var, weight, bias, eps)
    else:
        out, _, _ = norm.batch_norm_with(input, mean, var, weight, bias, eps)
    return in_format_of(input, out), input.new_empty(0), input.new_empty(0)


@aten("native_batch_norm", key=DENSE)
def native_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    rest = (weight, bias, running_mean, running_var, training, momentum, eps)
    return _batch_norm(_NATIVE_BATCH_NORM, input, *rest)


@aten("_native_batch_norm_legit", key=DENSE)
def native_batch_norm_legit(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    rest = (weight, bias, running_mean, running_var, training, momentum, eps)
    return _batch_norm(_BATCH_NORM_LEGIT, input, *rest)


@aten("_native_batch_norm_legit.no_stats", key=DENSE)
def native_batch_norm_no_stats(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    args = (input, weight, bias, training, momentum, eps)
    return _BATCH_NORM_NO_STATS.uncovered(_BATCH_STATISTICS, *args)


@aten("native_batch_norm_backward", key=DENSE)
def native_batch_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    save_mean: torch.Tensor | None,
    save_invstd: torch.Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Any:
    covered = _covered(input, weight, running_mean, running_var)
    if train or not covered or running_mean is None or running_var is None:
        return _BATCH_NORM_BACKWARD.uncovered(
            _BATCH_STATISTICS if train else f"no contract covers {input.dtype} here",
            grad_out,
            input,
            weight,
            running_mean,
            running_var,
            save_mean,
            save_invstd,
            train,
            eps,
            output_mask,
        )
    channels = input.shape[1]
    per_channel = (1, channels, 1)
    g = grad_out.to(_F32).reshape(input.shape[0], channels, -1)
    deviation = composed if input.is_cuda else engine
    r = deviation.reciprocal_deviation(running_var.to(_F32), eps).view(per_channel)
    dx = dw = db = None
    if output_mask[0]:
        dy = g if weight is None else g * weight.to(_F32).view(per_channel)
        dx = (dy * r).to(input.dtype).view(input.shape)
    if output_mask[1]:
        dtype = input.dtype if weight is None else weight.dtype
        xhat = (input.to(_F32).reshape(g.shape) - running_mean.to(_F32).view(per_channel)) * r
        dw = reduce.run("sum", g * xhat, (0, 2)).to(dtype)
    if output_mask[2]:
        dtype = input.dtype if weight is None else weight.dtype
        db = reduce.run("sum", g, (0, 2)).to(dtype)
    return dx, dw, db


# ---- weight norm ---------------------------------------------------------------------------------

_WEIGHT_NORM = stock("_weight_norm_interface")
_WEIGHT_NORM_BACKWARD = stock("_weight_norm_interface_backward")


def _other_axes(v: torch.Tensor, dim: int) -> tuple[int, ...]:
    return tuple(i for i in range(v.dim()) if i != dim % v.dim())


@aten("_weight_norm_interface", key=DENSE)
def weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> Any:
    if not _covered(v, g) or v.dim() < 2:
        return _WEIGHT_NORM.uncovered(f"no contract covers {v.dtype} here", v, g, dim)
    norms = reduce.run("norm2", v, _other_axes(v, dim), True, _F32)
    return (v.to(_F32) * (g.to(_F32) / norms)).to(v.dtype), norms


@aten("_weight_norm_interface_backward", key=DENSE)
def weight_norm_backward(
    grad_w: torch.Tensor,
    saved_v: torch.Tensor,
    saved_g: torch.Tensor,
    saved_norms: torch.Tensor,
    dim: int,
) -> Any:
    if not _covered(saved_v, saved_g) or saved_v.dim() < 2:
        args = (grad_w, saved_v, saved_g, saved_norms, dim)
        return _WEIGHT_NORM_BACKWARD.uncovered(f"no contract covers {saved_v.dtype} here", *args)
    dw, v, norms = grad_w.to(_F32), saved_v.to(_F32), saved_norms.to(_F32)
    along = reduce.run("sum", dw * v, _other_axes(v, dim), True) / norms
    dv = (dw - v * (along / norms)) * (saved_g.to(_F32) / norms)
    return dv.to(saved_v.dtype), along.to(saved_g.dtype)
