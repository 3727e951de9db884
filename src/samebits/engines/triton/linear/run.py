"""The launcher: a contract, a schedule, tensors with any strides, a kernel.

Operands are views ``x [M, K]``, ``w [N, K]``, ``y [M, N]``, or with a batch axis in front; the
caller has checked their shapes, dtypes and devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from samebits.contract import CUDA_FMA, LinearContract
from samebits.contract.linear import SCALE_BLOCK
from samebits.contract.tree import Chain, Segment, cut
from samebits.engines.triton.launch import launch
from samebits.engines.triton.linear.kernel import gemm_kernel
from samebits.engines.triton.linear.persistent import persistent_kernel
from samebits.engines.triton.linear.schedule import (
    LONGEST_PAIRWISE,
    GemmSchedule,
    fitting,
)
from samebits.engines.triton.linear.workspace import arrivals
from samebits.errors import ContractError

#: In elements: from this stride on, an offset inside a tile may not fit into 32 bits.
WIDE_FROM = 1 << 23


@dataclass(frozen=True)
class Leaves:
    """A tree over k as the kernels see it."""

    count: int
    length: int
    pairwise: bool


@lru_cache(maxsize=4096)
def leaves_of(contract: LinearContract, k: int) -> Leaves:
    """How `contract.tree` cuts k.

    Raises:
        ContractError: the kernels have no such tree.
    """
    tree = contract.tree
    if isinstance(tree, Chain):
        return Leaves(1, k, False)
    if not hasattr(tree, "fold") or not isinstance(tree.leaf, Chain):
        raise ContractError(f"matrix products on a GPU have no tree {tree}: use leaves of chains")
    edges = cut(tree, 0, k)
    pairwise = tree.fold == "pairwise"
    if pairwise and len(edges) > LONGEST_PAIRWISE:
        raise ContractError(
            f"{tree} cuts k = {k} into {len(edges)} leaves, and a pairwise fold takes at most "
            f"{LONGEST_PAIRWISE}: use longer leaves or an ascending fold"
        )
    return Leaves(len(edges), edges[0][1] if k else 0, pairwise)


def run(
    contract: LinearContract,
    schedule: GemmSchedule,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
) -> None:
    """y = epilogue(x @ w.T), with the bits of `contract`.

    Args:
        contract: its tree, arithmetic and scaling; y may hold fp32 instead of its output type.
        schedule: how; one that the operands' strides rule out is replaced by the nearest that fits.
        x: [M, K] or [B, M, K].
        w: [N, K] or [B, N, K].
        y: [M, N] or [B, M, N]; no two of its elements overlap, nor with an operand.
        c: bias, a view expanded to y's shape, or None. Not read if beta is 0.
        alpha, beta: factors of the product and of c.
        x_scale, w_scale: fp32, see `LinearContract.evaluate`.

    Raises:
        ContractError: a tree that the kernels do not have.
    """
    if y.numel() == 0:
        return
    leaves = leaves_of(contract, x.shape[-1])
    schedule = fitting(schedule, contract, leaves.length, leaves.count)
    if beta == 0:
        c = None
    if schedule.persistent:
        if _launch_persistent(contract, schedule, leaves, x, w, y, c, alpha, beta):
            return
        schedule = fitting(schedule.plain, contract, leaves.length, leaves.count)
    _launch_plain(contract, schedule, leaves, x, w, y, c, alpha, beta, x_scale, w_scale)


def _strides(x: torch.Tensor | None) -> tuple[int, int, int]:
    """(row, column, batch)."""
    if x is None:
        return 0, 0, 0
    s = x.stride()
    return (s[0], s[1], 0) if len(s) == 2 else (s[1], s[2], s[0])


def _bias_kind(row: int, col: int, c: torch.Tensor | None) -> str:
    if c is None:
        return "none"
    return "both" if row and col else "rows" if row else "cols"


def _by_rows(x: torch.Tensor) -> bool:
    """Whether the copy engine can fetch blocks of the rows of a matrix."""
    if x.dim() != 2:
        return False
    row, col = x.stride()
    return (
        col == 1
        and 0 < row * x.element_size() < 1 << 40
        and row * x.element_size() % 16 == 0
        and x.data_ptr() % 16 == 0
        and max(x.shape) < 1 << 31
    )


def _descriptor(x: torch.Tensor, rows: int, cols: int, turned: bool) -> TensorDescriptor:
    """Blocks [rows, cols] of x, or, turned, blocks [cols, rows] of its transpose."""
    view, block = (x.mT, [cols, rows]) if turned else (x, [rows, cols])
    return TensorDescriptor(view, list(view.shape), list(view.stride()), block)


@lru_cache(maxsize=64)
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a device; where there is none, a few."""
    if device.type != "cuda":
        return 3
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _launch_plain(
    contract: LinearContract,
    schedule: GemmSchedule,
    leaves: Leaves,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    x_scale: torch.Tensor | None,
    w_scale: torch.Tensor | None,
) -> None:
    k = x.shape[-1]
    (x_row, x_k, x_batch), (w_row, w_k, w_batch) = _strides(x), _strides(w)
    (c_row, c_col, c_batch), (y_row, y_col, y_batch) = _strides(c), _strides(y)
    (xs_row, xs_k, _), (ws_row, ws_k, _) = _strides(x_scale), _strides(w_scale)
    side_x = (x, x_row, x_k, x_batch), (x_scale, xs_row, xs_k), x.shape[-2], schedule.block_m
    side_w = (w, w_row, w_k, w_batch), (w_scale, ws_row, ws_k), w.shape[-2], schedule.block_n
    blocks = (1, SCALE_BLOCK)
    if schedule.swap:
        side_x, side_w, blocks = side_w, side_x, (SCALE_BLOCK, 1)
        y_row, y_col, c_row, c_col = y_col, y_row, c_col, c_row
    (a, a_row, a_k, a_batch), (a_scale, as_row, as_k), rows, block_r = side_x
    (b, b_row, b_k, b_batch), (b_scale, bs_row, bs_k), cols, block_c = side_w
    batch = y.shape[0] if y.dim() == 3 else 1
    slots = batch * -(-rows // block_r) * -(-cols // block_c)
    split = schedule.split and leaves.count > 1
    partials = counters = y
    if split:
        partials = torch.empty(
            slots * leaves.count * block_r * block_c, dtype=torch.float32, device=y.device
        )
        counters = arrivals(y.device, slots)
    widest = max(a_row, a_k, b_row, b_k, c_row, c_col, y_row, y_col)
    launch(
        gemm_kernel, (slots * leaves.count if split else slots,),
        a, b, y if c is None else c, y, y if a_scale is None else a_scale,
        y if b_scale is None else b_scale, partials, counters,
        rows, cols, k, leaves.length,
        a_row, a_k, a_batch, b_row, b_k, b_batch, c_row, c_col, c_batch, y_row, y_col, y_batch,
        as_row, as_k, bs_row, bs_k, alpha, beta,
        BLOCK_R=block_r, BLOCK_C=block_c, BLOCK_K=schedule.block_k, GROUP=schedule.group,
        LEAVES=leaves.count, PAIRWISE=leaves.pairwise, SPLIT=split,
        EVEN_K=k % schedule.block_k == 0 and leaves.length % schedule.block_k == 0,
        WIDE=widest >= WIDE_FROM, FMA=contract.arithmetic == CUDA_FMA,
        SCALING=contract.scaling, A_SCALE_BLOCK=blocks[0], B_SCALE_BLOCK=blocks[1],
        ALPHA=alpha != 1, BIAS=_bias_kind(c_row, c_col, c), BETA=beta != 1,
        RELU="relu" in contract.epilogue,
        num_warps=schedule.warps, num_stages=schedule.stages,
    )  # fmt: skip


def _launch_persistent(
    contract: LinearContract,
    schedule: GemmSchedule,
    leaves: Leaves,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
) -> bool:
    """False if the copy engine cannot take the operands."""
    tile = schedule.block_m, schedule.block_n, schedule.block_k
    if not (_by_rows(y) and (_by_rows(x) or _by_rows(x.mT)) and (_by_rows(w) or _by_rows(w.mT))):
        return False
    a_turned, b_turned = not _by_rows(x), not _by_rows(w)
    a = _descriptor(x, tile[0], tile[2], a_turned)
    b = _descriptor(w, tile[1], tile[2], b_turned)
    out = _descriptor(y, tile[0], tile[1] // 2, False)
    rows, cols, k = x.shape[0], w.shape[0], x.shape[1]
    c_row, c_col, _ = _strides(c)
    tiles = -(-rows // tile[0]) * -(-cols // tile[1])
    programs = min(processors(y.device), tiles)
    launch(
        persistent_kernel, (programs,),
        a, b, out, y if c is None else c, rows, cols, k, leaves.length, c_row, c_col, alpha, beta,
        BLOCK_R=tile[0], BLOCK_C=tile[1], BLOCK_K=tile[2], GROUP=schedule.group,
        LEAVES=leaves.count, PROGRAMS=programs, A_TURNED=a_turned, B_TURNED=b_turned,
        FMA=contract.arithmetic == CUDA_FMA,
        ALPHA=alpha != 1, BIAS=_bias_kind(c_row, c_col, c), BETA=beta != 1,
        RELU="relu" in contract.epilogue,
        num_warps=schedule.warps, num_stages=schedule.stages,
    )  # fmt: skip
    return True
