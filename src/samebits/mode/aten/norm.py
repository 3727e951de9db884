"""Overrides for layer, RMS, group and instance norm, forward and backward.

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
from samebits.mode.registry import DENSE, DENSE_AUTOGRAD, aten
from samebits.ops import norm, reduce
from samebits.ops.checks import one_device
from samebits.ops.norm import composed

_F32 = torch.float32

# ---- what the normalisations share --------------------------------------------------------------

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def _direct(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> bool:
    """Whether the engine may be called at once: real tensors, a covered dtype, no gradient."""
    if type(x) not in _PLAIN or x.dtype not in DTYPE_CODE:
        return False
    graph = torch.is_grad_enabled()
    if graph and x.requires_grad:
        return False
    on_cpu = x.is_cpu
    return (weight is None or _direct_parameter(weight, graph, on_cpu)) and (
        bias is None or _direct_parameter(bias, graph, on_cpu)
    )


def _direct_parameter(p: torch.Tensor, graph: bool, on_cpu: bool) -> bool:
    usable = type(p) in _PLAIN and p.dtype in DTYPE_CODE and p.is_cpu is on_cpu
    return usable and not (graph and p.requires_grad)


def covered(x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    """Whether the engine reads all of these.

    Raises:
        DTypeError: they are on different devices.
    """
    one_device("norm", x, *parameters)
    return x.dtype in DTYPE_CODE and all(p is None or p.dtype in DTYPE_CODE for p in parameters)


def in_format_of(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`out`, in the channels-last layout if `x` is in it: as stock does."""
    channels_last = torch.channels_last
    if x.is_contiguous() or x.dim() != 4 or not x.is_contiguous(memory_format=channels_last):
        return out
    return out.contiguous(memory_format=channels_last)


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


@aten("layer_norm", key=(*DENSE, *DENSE_AUTOGRAD))
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
    if input.is_cuda:
        return norm.layer_norm(input, normalized_shape, weight, bias, eps)
    n = norm.row_length("layer_norm", input, normalized_shape, weight, bias)
    return engine.norm(input, n, weight, bias, eps, centred=True)[0]


@aten("native_layer_norm", key=DENSE)
def native_layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Any:
    if not covered(input, weight, bias):
        reason = f"no contract covers {input.dtype} with these parameters"
        return _NATIVE_LAYER_NORM.uncovered(reason, input, normalized_shape, weight, bias, eps)
    n = norm.row_length("layer_norm", input, normalized_shape, weight, bias)
    kept = input.dim() - len(normalized_shape)
    dtype = _statistics_dtype(input, weight, bias)
    shape = (*input.shape[:kept], *(1 for _ in normalized_shape))
    if input.is_cuda:
        out = norm.layer_norm(
            input.detach(), normalized_shape, _detached(weight), _detached(bias), eps
        )
        rows = input.to(_F32).reshape(-1, n)
        var, average = reduce.run_with_mean("var", rows, -1, True, 0.0)
        return (
            out,
            average.to(dtype).view(shape),
            composed.reciprocal_deviation(var, eps).to(dtype).view(shape),
        )
    out, mean, rstd = engine.norm(input, n, weight, bias, eps, centred=True, statistics=dtype)
    return out, _viewed(mean, shape), _viewed(rstd, shape)


def _detached(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.detach()


def _viewed(x: torch.Tensor | None, shape: Sequence[int]) -> torch.Tensor:
    assert x is not None
    return x.view(*shape)


@aten("native_layer_norm_backward", key=DENSE)
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
    if not covered(input, weight, bias):
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


@aten("rms_norm", key=(*DENSE, *DENSE_AUTOGRAD))
def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if not _direct(input, weight, None):
        return torch._fused_rms_norm(input, tuple(normalized_shape), weight, eps)[0]
    if input.is_cuda:
        return norm.rms_norm(input, normalized_shape, weight, eps)
    n = norm.row_length("rms_norm", input, normalized_shape, weight)
    eps = norm.EPS if eps is None else eps
    return engine.norm(input, n, weight, None, eps, centred=False)[0]


_FUSED_RMS_NORM = stock("_fused_rms_norm")


@aten("_fused_rms_norm", key=DENSE)
def fused_rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    eps: float | None,
) -> Any:
    if not covered(input, weight):
        reason = f"no contract covers {input.dtype} with this weight"
        return _FUSED_RMS_NORM.uncovered(reason, input, normalized_shape, weight, eps)
    n = norm.row_length("rms_norm", input, normalized_shape, weight)
    eps = norm.EPS if eps is None else eps
    kept = input.dim() - len(normalized_shape)
    shape = (*input.shape[:kept], *(1 for _ in normalized_shape))
    if input.is_cuda:
        out = norm.rms_norm(input.detach(), normalized_shape, _detached(weight), eps)
        rows = input.to(_F32).reshape(-1, n)
        square = reduce.run("mean", rows * rows, -1, True)
        return out, composed.reciprocal_deviation(square, eps).view(shape)
    out, _, rstd = engine.norm(input, n, weight, None, eps, centred=False, statistics=_F32)
    return out, _viewed(rstd, shape)


@aten("_fused_rms_norm_backward", key=DENSE)
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


@aten("native_group_norm", key=DENSE)
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
    if not covered(input, weight, bias):
        reason = f"no contract covers {input.dtype} with these parameters"
        return _NATIVE_GROUP_NORM.uncovered(reason, input, weight, bias, N, C, HxW, group, eps)
    group_norm = composed.group_norm if input.is_cuda else engine.group_norm
    out, mean, rstd = group_norm(input.contiguous(), group, weight, bias, eps)
    out = in_format_of(input, out)
    dtype = _statistics_dtype(input, weight, bias)
    return out, mean.to(dtype), rstd.to(dtype)


@aten("native_group_norm_backward", key=DENSE)
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
    if not covered(input, weight):
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


@aten("instance_norm", key=(*DENSE, *DENSE_AUTOGRAD))
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
