"""Softmax and its relatives of CUDA tensors."""

from __future__ import annotations

import torch

from samebits.engines.triton.rows import softmax as engine
from samebits.ops.checks import one_device
from samebits.ops.gpu import matrix, recorded, schedule_for


@recorded
def softmax(x: torch.Tensor, axis: int, dtype: torch.dtype, log: bool) -> torch.Tensor:
    """Softmax, or its logarithm, along `axis` of `x`; contiguous, of `dtype`."""
    if not x.numel():
        return torch.empty(x.shape, dtype=dtype, device=x.device)
    op = "log_softmax" if log else "softmax"
    if axis < x.dim() - 1:
        moved = x.movedim(axis, -1)
        return softmax(moved, x.dim() - 1, dtype, log).movedim(-1, axis).contiguous()
    flat = matrix(op, x, x.shape[-1] if x.dim() else 1)
    y = engine.softmax(flat, dtype, schedule_for(op, flat, dtype), log=log)
    return y if flat is x else y.view(x.shape)


@recorded
def token_logprob(logits: torch.Tensor, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The log-probability of one token a row; NaN for an id that the row does not have."""
    one_device("token_logprob", logits, ids)
    if not ids.numel():
        return torch.empty(ids.shape, dtype=dtype, device=logits.device)
    if not logits.shape[-1]:
        return torch.full(ids.shape, float("nan"), dtype=dtype, device=logits.device)
    flat = matrix("token_logprob", logits, logits.shape[-1])
    schedule = schedule_for("logsumexp", flat, dtype)
    return engine.row_numbers(flat, ids.reshape(-1).contiguous(), dtype, schedule).view(ids.shape)
