"""Launches grouped products. Operands are validated by the caller."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
from msgspec.structs import replace

from samebits.contract import Balanced, Chain, LinearContract, Segment, Split
from samebits.contract.tree import cut
from samebits.engines.triton.grouped.kernel import grouped_linear_kernel
from samebits.engines.triton.grouped.persistent import grouped_persistent_kernel
from samebits.engines.triton.grouped.routing import UNUSED_GROUPS, Groups
from samebits.engines.triton.grouped.schedule import GroupedSchedule
from samebits.engines.triton.launch import descriptor, launch
from samebits.errors import ContractError

#: Leaves of a pairwise fold: every one is a loop of its own in the kernel.
LONGEST_PAIRWISE = 16


def leaves_of(contract: LinearContract, k: int) -> tuple[int, int, bool]:
    """Length and number of the tree's leaves over k elements, and whether it folds them pairwise.

    Raises:
        ContractError: a tree that the kernel does not fold.
    """
    tree = contract.tree
    if isinstance(tree, Chain) or k == 0:
        return max(k, 1), 1, False
    if not isinstance(tree, Segment | Split | Balanced) or tree.leaf != Chain():
        raise ContractError(f"grouped products fold no {tree}: leaves are chains")
    leaves = cut(tree, 0, k)
    pairwise = tree.fold == "pairwise" and len(leaves) > 2
    if pairwise and len(leaves) > LONGEST_PAIRWISE:
        raise ContractError(
            f"grouped products fold up to {LONGEST_PAIRWISE} leaves pairwise, and {tree} has "
            f"{len(leaves)} for k = {k}"
        )
    return leaves[0][1] - leaves[0][0], len(leaves), pairwise


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
    experts, n, k = weight.shape
    columns = n // 2 if gated else n
    slots = groups.order.numel()
    out = torch.empty(slots, columns, dtype=out_dtype, device=x.device)
    if not out.numel():
        return out
    leaf, leaves, pairwise = leaves_of(contract, k)
    s = schedule
    if s.persistent and not fits_persistent(contract, x, weight, columns):
        s = replace(s, persistent=False, block_n=128)
    width = s.block_n // 2 if gated else s.block_n
    shared: dict[str, Any] = {
        "num_warps": s.num_warps, "num_stages": s.num_stages, "GROUPS": _groups(experts),
        "SCATTER": scatter, "BIAS": bias is not None, "GATED": gated,
        "BLOCK_M": s.block_m, "BLOCK_N": s.block_n, "BLOCK_K": s.block_k, "BAND": s.band,
    }  # fmt: skip
    bias_stride = 0 if bias is None else bias.stride(0)
    if s.persistent:
        if slots_per_row is not None:
            x = x.index_select(0, groups.order // slots_per_row)
        launch(
            grouped_persistent_kernel, (processors(x.device),),
            descriptor(x, [s.block_m, s.block_k]),
            descriptor(weight.view(experts * n, k), [s.block_n // 2, s.block_k]),
            bias, out, groups.order, groups.edges, n, k, experts, bias_stride, out.stride(0),
            **shared,
        )  # fmt: skip
        return out
    most = (slots + min(slots, experts + UNUSED_GROUPS) * (s.block_m - 1)) // s.block_m
    launch(
        grouped_linear_kernel,
        (most * triton.cdiv(columns, width),),
        x, weight, bias, x_scale, w_scale, out, groups.order, groups.edges,
        n, k, experts, slots_per_row or 1, leaf,
        x.stride(0), *weight.stride(), bias_stride,
        0 if x_scale is None else x_scale.stride(0),
        0 if w_scale is None else w_scale.stride(0),
        0 if w_scale is None else w_scale.stride(1),
        out.stride(0),
        LEAVES=1 if contract.scaling == "block" else leaves, PAIRWISE=pairwise,
        SCALING=contract.scaling, GATHER=slots_per_row is not None, SWAP=s.swap,
        WHOLE=k % s.block_k == 0 and leaf % s.block_k == 0,
        **shared,
    )  # fmt: skip
    return out


def fits_persistent(
    contract: LinearContract, x: torch.Tensor, weight: torch.Tensor, columns: int
) -> bool:
    """Whether the persistent kernel takes the operands: a chain, dense 16-bit rows for TMA."""
    dense = weight.is_contiguous() and x.stride(1) == 1
    aligned = x.shape[1] % 8 == 0 and x.stride(0) % 8 == 0
    placed = x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0
    small = (weight.shape[0] + UNUSED_GROUPS) * weight.shape[1] < 2**31
    narrow = x.element_size() == 2 and isinstance(contract.tree, Chain)
    return narrow and dense and aligned and placed and small and columns > 0 and x.shape[1] > 0


def _groups(experts: int) -> int:
    return int(triton.next_power_of_2(experts + UNUSED_GROUPS))


@lru_cache(maxsize=64)
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a device; in the interpreter a few programs."""
    if device.type != "cuda":
        return 3
    return torch.cuda.get_device_properties(device).multi_processor_count
