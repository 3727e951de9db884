"""Launches grouped products. Operands are validated by the caller."""

from __future__ import annotations

import torch
import triton

from samebits.contract import Chain, LinearContract, Segment, Split
from samebits.contract.tree import cut
from samebits.engines.triton.grouped.kernel import grouped_linear_kernel
from samebits.engines.triton.grouped.routing import UNUSED_GROUPS, Groups
from samebits.engines.triton.grouped.schedule import GroupedSchedule
from samebits.engines.triton.launch import launch
from samebits.errors import ContractError


def leaves_of(contract: LinearContract, k: int) -> tuple[int, int]:
    """(length, number) of the tree's leaves over k elements.

    Raises:
        ContractError: a tree that the kernel does not fold.
    """
    tree = contract.tree
    if isinstance(tree, Chain) or k == 0:
        return max(k, 1), 1
    if isinstance(tree, Segment | Split) and tree.fold == "ascending":
        leaves = cut(tree, 0, k)
        return leaves[0][1] - leaves[0][0], len(leaves)
    raise ContractError(f"grouped products fold no {tree}: use a chain, a split or a segment")


def grouped_linear(
    contract: LinearContract,
    schedule: GroupedSchedule,
    x: torch.Tensor,
    weight: torch.Tensor,
    groups: Groups,
    *,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
    slots_per_row: int | None = None,
    scatter: bool = True,
    gated: bool = False,
) -> torch.Tensor:
    """Every slot's row of x times the transposed weight of its expert.

    Args:
        contract: of `linear` with one expert's weight.
        schedule: tiles; bits do not depend on it.
        x: [rows, K], K contiguous.
        weight: [E, N, K].
        groups: the slots by expert.
        out_dtype: of the result.
        bias: [E, N] or None.
        x_scale, w_scale: fp32, K's (or N's) blocks contiguous; see the kernel.
        slots_per_row: slot s has row s // slots_per_row of x; None: x is sorted like the groups.
        scatter: results in the order of slots, else sorted like the groups.
        gated: results are silu(first half) * second half of the N features.

    Returns:
        [slots, N], or [slots, N / 2] if gated.
    """
    slots = groups.order.numel()
    experts, n, k = weight.shape
    columns = n // 2 if gated else n
    out = torch.empty(slots, columns, dtype=out_dtype, device=x.device)
    leaf, leaves = leaves_of(contract, k)
    s = schedule
    width = s.block_n // 2 if gated else s.block_n
    most = (slots + min(slots, experts + UNUSED_GROUPS) * (s.block_m - 1)) // s.block_m
    launch(
        grouped_linear_kernel,
        (most * triton.cdiv(columns, width),),
        x, weight, bias, x_scale, w_scale, out, groups.order, groups.edges,
        n, k, slots_per_row or 1, leaf, leaves,
        x.stride(0), *weight.stride(), 0 if bias is None else bias.stride(0),
        0 if x_scale is None else x_scale.stride(0),
        0 if w_scale is None else w_scale.stride(0),
        0 if w_scale is None else w_scale.stride(1),
        out.stride(0),
        num_warps=s.num_warps, num_stages=s.num_stages,
        EXPERTS=experts, EXPERTS_PAD=triton.next_power_of_2(experts + UNUSED_GROUPS),
        SCALING=contract.scaling, GATHER=slots_per_row is not None, SCATTER=scatter,
        BIAS=bias is not None, GATED=gated, SWAP=s.swap,
        WHOLE=k % s.block_k == 0 and leaf % s.block_k == 0,
        BLOCK_M=s.block_m, BLOCK_N=s.block_n, BLOCK_K=s.block_k, GROUP=s.group,
    )  # fmt: skip
    return out
