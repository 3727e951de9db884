"""Combine: a token's slots, weighted and added in their order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch


@triton.jit
def combine_kernel(
    y, weights, out, hidden, stride, TOP_K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """out[t] = ((0 + w0 y0) + w1 y1) + ..., each step rounded to fp32, then one rounding."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    acc = tl.zeros([BLOCK], tl.float32)
    for slot in tl.static_range(TOP_K):
        row = token * TOP_K + slot
        weight = tl.load(weights + row).to(tl.float32)
        acc += weight * tl.load(y + row * stride + column, inside, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + column, acc.to(out.dtype.element_ty), inside)


def combine(y: torch.Tensor, weights: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """[tokens, hidden] from y [tokens * k, hidden] and contiguous weights [tokens, k]."""
    tokens, top_k = weights.shape
    hidden = y.shape[1]
    out = torch.empty(tokens, hidden, dtype=out_dtype, device=y.device)
    block = min(1024, triton.next_power_of_2(max(hidden, 16)))
    launch(
        combine_kernel, (tokens, triton.cdiv(hidden, block)),
        y, weights, out, hidden, y.stride(0), num_warps=4, TOP_K=top_k, BLOCK=block,
    )  # fmt: skip
    return out
