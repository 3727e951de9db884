"""Router: scores of the experts, the best k of them, and their weights. One launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.functions import exp, sigmoid
from samebits.engines.triton.launch import launch
from samebits.engines.triton.order.keys import LOWEST, float_key, index_of, with_index

#: Fixed point of sums of softmax terms: 40 bits after the point.
_SCALE = tl.constexpr(2.0**40)


@triton.jit
def router_topk_kernel(
    logits, bias, weights, ids, tokens, experts, stride,
    TOP_K: tl.constexpr, SOFTMAX: tl.constexpr, BIAS: tl.constexpr, RENORMALIZE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """BLOCK_T tokens a program; see `samebits.ops.moe.router_topk`."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    expert = tl.arange(0, BLOCK_E)
    inside = (expert < experts)[None, :]
    real = (token < tokens)[:, None]
    x = tl.load(logits + token.to(tl.int64)[:, None] * stride + expert[None, :], inside & real,
                other=0.0).to(tl.float32)  # fmt: skip
    ranked = x
    total = tl.zeros([BLOCK_T], tl.float32)
    if SOFTMAX:
        score = exp(x - tl.max(tl.where(inside, x, float("-inf")), 1)[:, None])
        if BIAS or not RENORMALIZE:
            fixed = tl.where(inside, (score * _SCALE).to(tl.int64), 0)
            total = tl.sum(fixed, 1).to(tl.float32) * (1.0 / _SCALE)
            broken = tl.max((inside & (score != score)).to(tl.int32), 1) != 0
            total = tl.where(broken, float("nan"), total)
        if BIAS:
            score = tl.div_rn(score, total[:, None] + tl.zeros_like(score))
            ranked = score
    else:
        score = sigmoid(x)
        ranked = score
    if BIAS:
        ranked += tl.load(bias + expert, expert < experts, other=0.0).to(tl.float32)[None, :]
    key = with_index(float_key(ranked), expert[None, :] + tl.zeros_like(token)[:, None])
    key = tl.where(inside, key, LOWEST)

    slot = tl.arange(0, BLOCK_K)[None, :]
    chosen = tl.zeros([BLOCK_T, BLOCK_K], tl.int32)
    weight = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    chain = tl.zeros([BLOCK_T], tl.float32)
    for j in tl.static_range(TOP_K):
        best = tl.max(key, 1)[:, None]
        here = key == best
        value = tl.sum(tl.where(here, score, 0.0), 1)
        chain += value
        chosen = tl.where(slot == j, index_of(best), chosen)
        weight = tl.where(slot == j, value[:, None], weight)
        key = tl.where(here, LOWEST, key)
    if RENORMALIZE:
        weight = tl.div_rn(weight, chain[:, None] + tl.zeros_like(weight))
    elif SOFTMAX and not BIAS:
        weight = tl.div_rn(weight, total[:, None] + tl.zeros_like(weight))
    at = token.to(tl.int64)[:, None] * TOP_K + slot
    stored = real & (slot < TOP_K)
    tl.store(ids + at, chosen, stored)
    tl.store(weights + at, weight, stored)


def router_topk(
    logits: torch.Tensor,
    k: int,
    *,
    renormalize: bool,
    softmax: bool,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights fp32 and ids int32, [tokens, k], from logits [tokens, experts]."""
    tokens, experts = logits.shape
    weights = torch.empty(tokens, k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(tokens, k, dtype=torch.int32, device=logits.device)
    block_e = triton.next_power_of_2(max(experts, 32))
    block_t = max(1, 1024 // block_e)
    launch(
        router_topk_kernel, (triton.cdiv(tokens, block_t),),
        logits, bias, weights, ids, tokens, experts, logits.stride(0),
        num_warps=4, TOP_K=k, SOFTMAX=softmax, BIAS=bias is not None, RENORMALIZE=renormalize,
        BLOCK_T=block_t, BLOCK_E=block_e, BLOCK_K=triton.next_power_of_2(k),
    )  # fmt: skip
    return weights, ids
