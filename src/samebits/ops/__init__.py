"""Every operation as a function: one folder an op, usable without the switch."""

from __future__ import annotations

from samebits.ops.attention import attention, attention_paged, attention_varlen
from samebits.ops.conv import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from samebits.ops.linear import linear
from samebits.ops.matmul import addbmm, addmm, addmv, baddbmm, bmm, dot, matmul, mm, mv
from samebits.ops.norm import batch_norm, group_norm, layer_norm, rms_norm
from samebits.ops.pointwise import (
    gelu,
    gelu_mul,
    glu,
    sigmoid,
    silu,
    silu_mul,
    softplus,
    tanh,
)
from samebits.ops.reduce import (
    logsumexp,
    mean,
    nansum,
    prod,
    std,
    std_mean,
    sum,
    var,
    var_mean,
    vector_norm,
)
from samebits.ops.rotary import rotary
from samebits.ops.scan import cumprod, cumsum
from samebits.ops.softmax import log_softmax, softmax, token_logprob

__all__ = [
    "addbmm",
    "addmm",
    "addmv",
    "attention",
    "attention_paged",
    "attention_varlen",
    "baddbmm",
    "batch_norm",
    "bmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cumprod",
    "cumsum",
    "dot",
    "gelu",
    "gelu_mul",
    "glu",
    "group_norm",
    "layer_norm",
    "linear",
    "log_softmax",
    "logsumexp",
    "matmul",
    "mean",
    "mm",
    "mv",
    "nansum",
    "prod",
    "rms_norm",
    "rotary",
    "sigmoid",
    "silu",
    "silu_mul",
    "softmax",
    "softplus",
    "std",
    "std_mean",
    "sum",
    "tanh",
    "token_logprob",
    "var",
    "var_mean",
    "vector_norm",
]
