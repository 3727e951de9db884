"""Bags of embedding rows on the GPU: one program walks the items of a bag in their order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch


@triton.jit
def bags_kernel(
    weight, indices, edges, per_sample, acc, counts, chosen, dim, stride, padding,
    WEIGHTED: tl.constexpr, MODE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """acc [bags, dim] fp32: sum (MODE 0), mean (1) or maximum (2) of a bag's rows."""
    bag = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < dim
    total = tl.zeros([BLOCK], tl.float32)
    taken = tl.full([BLOCK], -1, tl.int64)
    count = tl.full((), 0, tl.int64)
    for item in range(tl.load(edges + bag), tl.load(edges + bag + 1)):
        row = tl.load(indices + item)
        if row != padding:
            value = tl.load(weight + row * stride + column, inside, other=0.0).to(tl.float32)
            if MODE == 2:
                better = (count == 0) | ((total == total) & ((value > total) | (value != value)))
                total = tl.where(better, value, total)
                taken = tl.where(better, row, taken)
            elif WEIGHTED:
                total += tl.load(per_sample + item).to(tl.float32) * value
            else:
                total += value
            count += 1
    if MODE == 1:
        divisor = tl.maximum(count, 1).to(tl.float32)
        total = tl.div_rn(total, tl.zeros_like(total) + divisor)
    tl.store(acc + bag * dim + column, total, inside)
    if MODE == 2:
        tl.store(chosen + bag * dim + column, taken, inside)
    if tl.program_id(1) == 0:
        tl.store(counts + bag, count)


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    edges: torch.Tensor,
    mode: int,
    per_sample: torch.Tensor | None,
    padding_idx: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `samebits.engines.cpu.order.embedding_bag`, with the same bits."""
    from samebits.engines.triton.scatter import narrow

    bags, dim = edges.numel() - 1, weight.shape[1]
    acc = torch.empty(bags, dim, dtype=torch.float32, device=weight.device)
    counts = torch.empty(bags, dtype=torch.int64, device=weight.device)
    chosen = torch.empty_like(acc, dtype=torch.int64) if mode == 2 else counts
    block = min(512, max(32, triton.next_power_of_2(max(dim, 1))))
    launch(
        bags_kernel, (bags, max(1, triton.cdiv(dim, block))),
        weight, indices, edges, per_sample, acc, counts, chosen, dim, weight.stride(0),
        padding_idx, num_warps=4, WEIGHTED=per_sample is not None, MODE=mode, BLOCK=block,
    )  # fmt: skip
    return narrow(acc, weight.dtype), counts, chosen
