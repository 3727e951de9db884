"""Overrides for softmax and normalisations, forward and backward.

Backward passes are elementwise fp32 arithmetic (one IEEE operation at a time) and covered sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import norm as engine
from samebits.mode.fallback import stock
from samebits.mode.registry import aten
from samebits.ops import norm, reduce
from samebits.ops.softmax import run as run_softmax

_F32 = torch.float32

# ---- softmax -----------------------------------------------------------------------------------

_SOFTMAX, _LOG_SOFTMAX = stock("_softmax"), stock("_log_softmax")
_SOFTMAX_BACKWARD = stock("_softmax_backward_data")
_LOG_SOFTMAX_BACKWARD = stock("_log_softmax_backward_data")
_MASKED_SOFTMAX = stock("_masked_softmax")


@aten("_softmax")
def softmax_forward(self: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _SOFTMAX.by_dtype(self.dtype, self, dim, half_to_float)
    return run_softmax(self, dim, _F32 if half_to_float else None, False)


@aten("_log_softmax")
def log_softmax_forward(self: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _LOG_SOFTMAX.by_dtype(self.dtype, self, dim, half_to_float)
    return run_softmax(self, dim, _F32 if half_to_float else None, True)


@aten("_softmax_backward_data")
def softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> Any:
    if output.dtype not in DTYPE_CODE:
        return _SOFTMAX_BACKWARD.by_dtype(output.dtype, grad_output, output, dim, input_dtype)
    g, y = grad_output.to(_F32), output.to(_F32)
    return ((g - reduce.run("sum", g * y, dim, True)) * y).to(input_dtype)


@aten("_log_softmax_backward_data")
def log_softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> Any:
    if output.dtype not in DTYPE_CODE:
        return _LOG_SOFTMAX_BACKWARD.by_dtype(output.dtype, grad_output, output, dim, input_dtype)
    g = grad_output.to(_F32)
    return (g - torch.exp(output.to(_F32)) * reduce.run("sum", g, dim, True)).to(input_dtype)


@aten("_masked_softmax")
def masked_softmax(
    self: torch.Tensor, mask: torch.Tensor, dim: int | None = None, mask_type: int | None = None
) -> Any:
    return _MASKED_SOFTMAX.uncovered(
        "the masked softmax of nested attention has no contract", self, mask, dim, mask_type
    )


# ---- what the normalisations share --------------------------------------------------------------

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def _direct(x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    """Whether the engine may be called at once: real tensors, a covered dtype, no gradient."""
    if type(x) not in _PLAIN or x.dtype not in DTYPE_CODE:
        return False
    graph = torch.is_grad_enabled()
    if graph and x.requires_grad:
        return False
    for p in parameters:
        if p is not None and (
            type(p) not in _PLAIN or p.dtype not in DTYPE_CODE or (graph and p.requires_grad)
        ):
            return False
    return True


def _covered(x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    return x.dtype in DTYPE_CODE and all(p is None or p.dtype in DTYPE_CODE for p in parameters)


def _statistics_dtype(x: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype:
    mixed = any(p is not None and p.dtype is _F32 for p in parameters)
    return _F32 if mixed else x.dtype


def _row_gradient(dy: torch.Tensor, xhat: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Gradient of ``(x - mean) * r`` along the last axis; all fp32."""
    first = reduce.run("mean", dy, -1, True)
    second = reduce.run("mean", dy * xhat, -1, True)
    return ((dy - first) - xhat * second) * r


# ---- layer norm --------------------------------------------------------------------------------

_NATIVE_LAYER_NORM = stock("native_layer_norm")
_NATIVE_LAYER_NORM_BACKWARD = stock("native_layer_norm_backward")


@aten("layer_norm")
@aten("layer_norm", key="AutogradCPU")
def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    if not _direct(input, weight, bias):
        return torch.native_layer_norm(input, normalized_shape, weight, bias, eps)[0]
    n = norm.row_length("layer_norm", input, normalized_shape, weight, bias)
    return engine.norm(input, n, weight, bias, eps, centred=True)[0]


@aten("native_layer_norm")
def native_layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Any:
    if not _covered(input, weight, bias):
        reason = f"no contract covers {input.dtype} with these parameters"
        return _NATIVE_LAYER_NORM.uncovered(reason, input, normalized_shape, weight, bias, eps)
    n = norm.row_length("layer_norm", input, normalized_shape, weight, bias)
    kept = input.dim() - len(normalized_shape)
    dtype = _statistics_dtype(input, weight, bias)
    out, mean, rstd = engine.norm(input, n, weight, bias, eps, centred=True, statistics=dtype)
    shape = (*input.shape[:kept], *(1 for _ in normalized_shape))
    return out, _viewed(mean, shape), _viewed(rstd, shape)


def _viewed(x: torch.Tensor | None, shape: Sequence[int]) -> torch.Tensor:
    assert x is not None
    return x.view(*shape)


@aten("native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: Sequence[bool],
) -> Any:
    if not _covered(input, weight, bias):
        return _NATIVE_LAYER_NORM_BACKWARD.uncovered(
            f"no contract covers {input.dtype} with these parameters",
            grad_out,
            input,
            normalized_shape,
            mean,
            rstd,
            weight,
            bias,
            output_mask,
        )
    n = math.prod(normalized_shape)
    rows = input.numel() // n if n else 0
    g = grad_out.to(_F32).reshape(rows, n)
    r = rstd.to(_F32).reshape(rows, 1)
    xhat = (input.to(_F32).reshape(rows, n) - mean.to(_F32).reshape(rows, 1)) * r
    dx = dw = db = None
    if output_mask[0]:
        dy = g if weight is None else g * weight.to(_F32).reshape(1, n)
        dx = _row_gradient(dy, xhat, r).to(input.dtype).view(input.shape)
    if output_mask[1] and weight is not None:
        dw = reduce.run("sum", g * xhat, 0).to(weight.dtype).view(weight.shape)
    if output_mask[2] and bias is not None:
        db = reduce.run("sum", g, 0).to(bias.dtype).view(bias.shape)
    return dx, dw, db


# ---- RMS norm ----------------------------------------------------------------------------------


@aten("rms_norm")
@aten("rms_norm", key="AutogradCPU")
def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if not _direct(input, weight):
        return torch._fused_rms_norm(input, tuple(normalized_shape), weight, eps)[0]
    n = norm.row_length("rms_norm", input, normalized_shape, weight)
    eps = norm.EPS if eps is None else eps
    return engine.norm(input, n, weight, None, eps, centred=False)[0]


_FUSED_RMS_NORM = stock("_fused_rms_norm")


@aten("_fused_rms_norm")
def fused_rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    eps: float | None,
) -> Any:
    if not _covered(input, weight):
        reason = f"no contract covers {input.dtype} with this weight"
        return _FUSED_RMS_NORM.uncovered(reason, input, normalized_shape, weight, eps)
    n = norm.row_length("rms_norm", input, normalized_shape, weight)
    eps = norm.EPS if eps is None else eps
    out, _, rstd = engine.norm(input, n, weight, None, eps, centred=False, statistics=_F32)
    kept = input.dim() - len(normalized_shape)
    return out, _viewed(rstd, (*input.shape[:kept], *(1 for _ in normalized_shape)))


@aten("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    output_mask: Sequence[bool],
) -> Any:
    n = math.prod(normalized_shape)
    rows = input.numel() // n if n else 0
    g = grad_out.to(_F32).reshape(rows, n)
    r = rstd.to(_F32).reshape(rows, 1)
    xhat = input.to(_F32).reshape(rows, n) * r
    dx = dw = None
    if output_mask[0]:
        dy = g if weight is None else g * weight.to(_F32).reshape(1, n)
        second = reduce.run("mean", dy * xhat, -1, True)
        dx = ((dy - xhat * second) * r).to(input.dtype).view(input.shape)
    if output_mask[1] and weight is not None:
        dw = reduce.run("sum", g * xhat, 0).to(weight.dtype).view(weight.shape)
    return dx, dw


# ---- group norm and instance norm ----------------------------------------------------------------

_NATIVE_GROUP_NORM = stock("native_group_norm")
_NATIVE_GROUP_NORM_BACKWARD = stock("native_group_norm_backward")


@aten("native_group_norm")
def native_group_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> Any:
    if not _covered(input, weight, bias):
        reason = f"no contract covers {input.dtype} with these parameters"
        return _NATIVE_GROUP_NORM.uncovered(reason, input, weight, bias, N, C, HxW, group, eps)
    out, mean, rstd = engine.group_norm(input.contiguous(), group, weight, bias, eps)
    dtype = _statistics_dtype(input, weight, bias)
    return out, mean.to(dtype), rstd.to(dtype)


@aten("native_group_norm_backward")
def native_group_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Any:
    if not _covered(input, weight):
        return _NATIVE_GROUP_NORM_BACKWARD.uncovered(
            f"no contract covers {input.dtype} with this weight",
            grad_out,
            input,
            mean,
            rstd,
            weight,
            N,
            C,
            HxW,
            group,
            output_mask,
        )
    g = grad_out.to(_F32).reshape(N, C, HxW)
    r = rstd.to(_F32).reshape(N, group, 1)
    centred = input.to(_F32).reshape(N, group, -1) - mean.to(_F32).reshape(N, group, 1)
    xhat = centred * r
    dx = dw = db = None
    if output_mask[0]:
        dy = g if weight is None else g * weight.to(_F32).reshape(1, C, 1)
        dx = _row_gradient(dy.reshape(N, group, -1), xhat, r).to(input.dtype).view(input.shape)
    if output_mask[1]:
        dtype = input.dtype if weight is None else weight.dtype
        dw = reduce.run("sum", g * xhat.reshape(N, C, HxW), (0, 2)).to(dtype)
    if output_mask[2]:
        dtype = input.dtype if weight is None else weight.dtype
        db = reduce.run("sum", g, (0, 2)).to(dtype)
    return dx, dw, db


_INSTANCE_NORM = stock("instance_norm", "AutogradCPU")


@aten("instance_norm")
@aten("instance_norm", key="AutogradCPU")
def instance_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    args = (input, weight, bias, running_mean, running_var)
    if not use_input_stats:
        return torch.batch_norm(*args, False, momentum, eps, cudnn_enabled)
    if running_mean is not None or running_var is not None:
        return _INSTANCE_NORM.uncovered(
            "running statistics are averaged over the batch",
            *args,
            use_input_stats,
            momentum,
            eps,
            cudnn_enabled,
        )
    return torch.group_norm(input, input.shape[1], weight, bias, eps)


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
    out, _, _ = norm.batch_norm_with(input, mean, var, weight, bias, eps)
    return out, torch.empty(0), torch.empty(0)


@aten("native_batch_norm")
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


@aten("_native_batch_norm_legit")
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


@aten("_native_batch_norm_legit.no_stats")
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


@aten("native_batch_norm_backward")
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
    r = engine.reciprocal_deviation(running_var.to(_F32), eps).view(per_channel)
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
