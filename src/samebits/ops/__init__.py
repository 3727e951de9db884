"""Every operation as a function: one folder an op, usable without the switch."""

from __future__ import annotations

from samebits.ops.norm import batch_norm, group_norm, layer_norm, rms_norm
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
from samebits.ops.scan import cumprod, cumsum
from samebits.ops.softmax import log_softmax, softmax, token_logprob

__all__ = [
    "batch_norm",
    "cumprod",
    "cumsum",
    "group_norm",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "mean",
    "nansum",
    "prod",
    "rms_norm",
    "softmax",
    "std",
    "std_mean",
    "sum",
    "token_logprob",
    "var",
    "var_mean",
    "vector_norm",
]
from samebits.ops.linear import linear as linear
from samebits.ops.matmul import addbmm as addbmm
from samebits.ops.matmul import addmm as addmm
from samebits.ops.matmul import addmv as addmv
from samebits.ops.matmul import baddbmm as baddbmm
from samebits.ops.matmul import bmm as bmm
from samebits.ops.matmul import dot as dot
from samebits.ops.matmul import matmul as matmul
from samebits.ops.matmul import mm as mm
from samebits.ops.matmul import mv as mv
