"""Softmax, log-softmax and the log-probability of given tokens.

With m the exact maximum along `dim` and s the sum of ``exp(x - m)`` by the row tree (see
`samebits.ops.reduce`): ``softmax = exp(x - m) / s`` (IEEE division) and
``log_softmax = (x - m) - log(s)``, in fp32 with one rounding to the result's dtype; exp and log
are those of `samebits.contract.functions`. A row that is all -inf, or holds +inf or NaN, gives NaN
as in torch. On CUDA tensors the maximum is that of each leaf of the row tree, and the leaves' sums
are brought to the row's maximum before the fold: `samebits.contract.rows.LEAF_FORMULAS`.
"""

from __future__ import annotations

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import norm as engine
from samebits.errors import DTypeError, ShapeError
from samebits.ops.checks import axis_of, engine_tensor


def run(x: torch.Tensor, dim: int, dtype: torch.dtype | None, log: bool) -> torch.Tensor:
    """Both softmaxes, for a tensor that the engine is known to read; gradients are ignored."""
    if dtype is None or dtype is x.dtype:
        dtype = x.dtype
    elif dtype not in DTYPE_CODE:
        raise DTypeError(f"softmax: dtype={dtype} is not one of float32, bfloat16, float16")
    elif dtype is not torch.float32:
        x = x.to(dtype)
    rank = x.dim()
    axis = axis_of("softmax", dim, rank)
    if x.is_cuda:
        from samebits.ops.softmax import cuda

        return cuda.softmax(x, axis, dtype, log)
    if rank == 0:
        return engine.softmax(x[None], 0, dtype, log)[0]
    return engine.softmax(x, axis, dtype, log)


def softmax(x: torch.Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Softmax along `dim`.

    Args:
        x: fp32, bf16 or fp16, any shape and strides.
        dtype: of the result (16-bit input is not rounded in between); default that of `x`.

    Returns:
        A contiguous tensor of x's shape.

    Raises:
        DTypeError, ShapeError: see `checks`.
    """
    return run(engine_tensor("softmax", x, gpu=True), dim, dtype, False)


def log_softmax(
    x: torch.Tensor, dim: int = -1, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Logarithm of the softmax along `dim`; arguments as `softmax`."""
    return run(engine_tensor("log_softmax", x, gpu=True), dim, dtype, True)


def token_logprob(
    logits: torch.Tensor, ids: torch.Tensor, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``log_softmax(logits, -1)`` at ``ids``, with the same bits and without the full result.

    Args:
        logits: [..., V] fp32, bf16 or fp16.
        ids: [...] integers in [0, V).
        dtype: of the result; default that of `logits`. float32 is what a policy ratio wants.

    Returns:
        [...].

    Raises:
        ShapeError: shapes do not fit, or an id is out of range. (A GPU is not waited for: there an
            id out of range gives NaN.)
        DTypeError: `ids` are not integers, or see `checks`.
    """
    logits = engine_tensor("token_logprob", logits, gpu=True)
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype is torch.bool:
        raise DTypeError(f"token_logprob: ids are integers, not {ids.dtype}")
    if logits.dim() == 0 or logits.shape[:-1] != ids.shape:
        raise ShapeError(
            f"token_logprob: logits {tuple(logits.shape)} need ids of shape "
            f"{tuple(logits.shape[:-1])}, not {tuple(ids.shape)}"
        )
    if dtype is None:
        dtype = logits.dtype
    elif dtype is not torch.float32 and dtype is not logits.dtype:
        raise DTypeError(f"token_logprob: dtype is float32 or {logits.dtype}, not {dtype}")
    if logits.is_cuda:
        from samebits.ops.softmax import cuda

        return cuda.token_logprob(logits, ids, dtype)
    out = engine.token_logprob(logits, ids.to(torch.int64).contiguous(), dtype)
    if out is None:
        raise ShapeError(f"token_logprob: an id is outside [0, {logits.shape[-1]})")
    return out
