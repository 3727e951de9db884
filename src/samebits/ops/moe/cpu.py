"""Mixture of experts on the CPU engine. Operands are validated by the caller."""

from __future__ import annotations

import torch

from samebits.engines.cpu import gemm
from samebits.engines.cpu import order as scatter
from samebits.engines.cpu.pointwise import gated, unary
from samebits.ops.order import topk

#: Fixed point of sums of softmax terms: 40 bits after the point.
_SCALE = 2.0**40


def router_topk(
    logits: torch.Tensor, k: int, renormalize: bool, softmax: bool, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    x = logits.to(torch.float32)
    if not softmax:
        score = ranked = unary("sigmoid", x)
        total = None
    else:
        top = torch.where(x.isnan(), -torch.inf, x).amax(-1, keepdim=True)
        score, ranked = unary("exp", x - top), x
        total = (score * _SCALE).to(torch.int64).sum(-1, keepdim=True).to(torch.float32) / _SCALE
        total = total.masked_fill(score.isnan().any(-1, keepdim=True), torch.nan)
        if bias is not None:
            score = ranked = score / total
    if bias is not None:
        ranked = ranked + bias.to(torch.float32)
    ids = topk(ranked, k)[1]
    weights = score.gather(-1, ids)
    if renormalize:
        chain = torch.zeros_like(weights[:, :1])
        for slot in range(k):
            chain = chain + weights[:, slot : slot + 1]
        weights = weights / chain
    elif total is not None and bias is None:
        weights = weights / total
    return scatter.narrow(weights.contiguous(), torch.float32), ids.to(torch.int32)


def grouped_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor | None,
    offsets: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    experts, n, _ = weight.shape
    shape = x.shape[:1] if ids is None else ids.shape
    flat = None if ids is None else ids.reshape(-1)
    slots_per_row = shape[1] if len(shape) == 2 else 1
    out = x.new_zeros(shape.numel(), n, dtype=out_dtype)
    for expert in range(experts):
        if flat is None:
            assert offsets is not None
            slots = torch.arange(*offsets[expert : expert + 2].tolist(), device=x.device)
        else:
            slots = (flat == expert).nonzero()[:, 0]
        if slots.numel():
            rows = x[slots // slots_per_row]
            own = None if bias is None else bias[expert]
            out[slots] = gemm.linear(rows, weight[expert], own, out_dtype)
    return out.view(*shape, n)


def moe(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    return combine(slots(x, w_gate_up, w_down, topk_ids, activation), topk_weights)


def slots(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """[T, k, H]: what each chosen expert says, +0 for a slot without one."""
    inner = w_down.shape[2]
    both = grouped_linear(x, w_gate_up, topk_ids, None, None, x.dtype).flatten(0, 1)
    opened = gated(activation, both[:, :inner].contiguous(), both[:, inner:].contiguous())
    y = grouped_linear(opened, w_down, topk_ids.reshape(-1), None, None, x.dtype)
    return y.view(*topk_ids.shape, w_down.shape[1])


def combine(y: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
    weights = topk_weights.to(torch.float32)
    acc = y.new_zeros(y.shape[0], y.shape[2], dtype=torch.float32)
    for slot in range(y.shape[1]):
        acc = acc + weights[:, slot, None] * y[:, slot].to(torch.float32)
    return scatter.narrow(acc, y.dtype)
