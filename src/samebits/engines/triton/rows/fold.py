"""Partial sums of a balanced tree, folded: one pass over them, bias and rounding included."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch
from samebits.engines.triton.rows.pointwise import WARPS, block_for
from samebits.engines.triton.rows.schedule import cdiv
from samebits.engines.triton.rows.tree import begin, overlaps


@triton.jit
def subtree(parts, k, inside, stride, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """``(p0 + p1) + (p2 + p3) ...`` of parts FIRST .. FIRST + COUNT - 1 at elements k."""
    if COUNT == 1:
        total = tl.load(parts + FIRST * stride + k, inside, other=0.0)
    else:
        left = subtree(parts, k, inside, stride, FIRST, COUNT // 2)
        total = left + subtree(parts, k, inside, stride, FIRST + COUNT // 2, COUNT // 2)
    return total


@triton.jit
def fold_kernel(
    parts, bias, y, elements, columns,
    PARTS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """BLOCK elements of y."""
    begin(PDL)
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = k < elements
    total = subtree(parts, k, inside, tl.cast(elements, tl.int64), 0, PARTS)
    if BIAS:
        total += tl.load(bias + k % columns, inside, other=0.0).to(tl.float32)
    tl.store(y + k, total.to(y.dtype.element_ty), inside)


def fold_parts(
    parts: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:  # fmt: skip
    """[M, N] of `dtype` from fp32 partial sums.

    Args:
        parts: [P, M, N] fp32, contiguous; P a power of two: folded pairwise.
        bias: [N] of `dtype`, contiguous, added in fp32 before the one rounding; or None.
    """
    y = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    elements = y.numel()
    if not elements:
        return y
    block = block_for(elements)
    blocks = cdiv(elements, block)
    pdl = overlaps(parts, blocks)
    launch(
        fold_kernel, (blocks,), parts, bias, y, elements, y.shape[-1],
        PARTS=parts.shape[0], BIAS=bias is not None, BLOCK=block, PDL=pdl, num_warps=WARPS,
        pdl=pdl,
    )  # fmt: skip
    return y
