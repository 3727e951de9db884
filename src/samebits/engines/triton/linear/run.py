"""The launcher: a contract, a schedule, tensors with any strides, a kernel.

Operands are views ``x [M, K]``, ``w [N, K]``, ``y [M, N]``, or with a batch axis in front; the
caller has checked their shapes, dtypes and devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from samebits.contract import CUDA_FMA, LinearContract
from samebits.contract.linear import SCALE_BLOCK
from samebits.contract.tree import Chain, Lanes, cut
from samebits.engines.triton.launch import descriptor, prepare
from samebits.engines.triton.linear.kernel import gemm_kernel
from samebits.engines.triton.linear.persistent import persistent_kernel
from samebits.engines.triton.linear.schedule import (
    LONGEST_PAIRWISE,
    GemmSchedule,
    fitting,
)
from samebits.engines.triton.linear.specialized import SLAB, shared_layout, specialized_kernel
from samebits.engines.triton.linear.workspace import arrivals
from samebits.errors import ContractError, ShapeError

#: Rows, columns and tiles are counted in 32 bits.
MOST = 2**31 - 1024
#: Plans that are kept: launches made ready for operands of given strides.
_MOST_PLANS = 8192
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
    if isinstance(tree, Lanes) or not isinstance(tree.leaf, Chain):
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
        schedule: how; one that the operands rule out is replaced by the nearest that fits.
        x: [M, K] or [B, M, K].
        w: [N, K] or [B, N, K].
        y: [M, N] or [B, M, N]; no two of its elements overlap, nor with an operand.
        c: bias, a view expanded to y's shape, or None. Not read if beta is 0.
        alpha, beta: factors of the product and of c.
        x_scale, w_scale: fp32, see `LinearContract.evaluate`.

    Raises:
        ContractError: a tree that the kernels do not have.
        ShapeError: more rows or columns than a kernel counts.
    """
    if beta == 0:
        c = None
    # A plan keeps its contract and schedule alive, so their addresses stand for them.
    key = (
        id(contract), id(schedule), x.stride(), w.stride(), w.shape, y.stride(), y.dtype,
        None if c is None else c.stride(), alpha != 1, beta != 1,
        (x.data_ptr() | w.data_ptr() | y.data_ptr()) & 15 == 0, y.get_device(),
        None if x_scale is None else x_scale.stride(),
        None if w_scale is None else w_scale.stride(),
    )  # fmt: skip
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = _plan(contract, schedule, x, w, y, c, alpha, beta, x_scale, w_scale)
    plan(x, w, y, c, alpha, beta, x_scale, w_scale)


def _plan(
    contract: LinearContract,
    schedule: GemmSchedule,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    x_scale: torch.Tensor | None,
    w_scale: torch.Tensor | None,
) -> _Plain | _Persistent | _Specialized:
    leaves = leaves_of(contract, x.shape[-1])
    shape = leaves.length, leaves.count, y.element_size()
    fit = fitting(schedule, contract, *shape)
    c_row, c_col, _ = _strides(c)
    epilogue = {
        "ALPHA": alpha != 1, "BIAS": _bias_kind(c_row, c_col, c), "BETA": beta != 1,
        "RELU": "relu" in contract.epilogue,
    }  # fmt: skip
    stores = fit.persistent or fit.specialized
    if (stores or fit.tma) and not _fetchable(x, w, y, stores):
        fit = fitting(fit.plain, contract, *shape)
    kind = _Specialized if fit.specialized else _Persistent if fit.persistent else _Plain
    return kind(contract, schedule, fit, leaves, epilogue, x, w, y, c, x_scale, w_scale)


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


class _Plain:
    """`gemm_kernel` for operands of given strides; M and the batch are free."""

    def __init__(
        self,
        contract: LinearContract,
        wanted: GemmSchedule,
        schedule: GemmSchedule,
        leaves: Leaves,
        epilogue: dict[str, Any],
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        x_scale: torch.Tensor | None,
        w_scale: torch.Tensor | None,
    ) -> None:
        self.kept = contract, wanted  # see `run`
        self.swap, self.leaves = schedule.swap, leaves.count
        self.split = schedule.split and leaves.count > 1
        self.block_k, self.tma = schedule.block_k, schedule.tma
        turns = [self.tma and not _by_rows(x), self.tma and not _by_rows(w)]
        k = x.shape[-1]
        ab, blocks = [_strides(x), _strides(w)], (schedule.block_m, schedule.block_n)
        scales, spans = [_strides(x_scale), _strides(w_scale)], (1, SCALE_BLOCK)
        (c_row, c_col, c_batch), (y_row, y_col, y_batch) = _strides(c), _strides(y)
        if self.swap:
            ab, scales, blocks, spans = ab[::-1], scales[::-1], blocks[::-1], spans[::-1]
            turns.reverse()
            y_row, y_col, c_row, c_col = y_col, y_row, c_col, c_row
            turned = {"rows": "cols", "cols": "rows"}
            epilogue = {**epilogue, "BIAS": turned.get(epilogue["BIAS"], epilogue["BIAS"])}
        self.block_r, self.block_c = blocks
        self.a_turned, self.b_turned = turns
        self.numbers = (
            k, leaves.length, *ab[0], *ab[1], c_row, c_col, c_batch, y_row, y_col, y_batch,
            *scales[0][:2], *scales[1][:2],
        )  # fmt: skip
        self.launch = prepare(
            gemm_kernel,
            BLOCK_R=self.block_r, BLOCK_C=self.block_c, BLOCK_K=schedule.block_k,
            GROUP=schedule.group, LEAVES=leaves.count, PAIRWISE=leaves.pairwise, SPLIT=self.split,
            EVEN_K=k % schedule.block_k == 0 and leaves.length % schedule.block_k == 0,
            WIDE=max(*ab[0][:2], *ab[1][:2], c_row, c_col, y_row, y_col) >= WIDE_FROM,
            FMA=contract.arithmetic == CUDA_FMA, TMA=self.tma, A_TURNED=self.a_turned,
            B_TURNED=self.b_turned,
            SCALING=contract.scaling, A_SCALE_BLOCK=spans[0], B_SCALE_BLOCK=spans[1],
            **epilogue, num_warps=schedule.warps, num_stages=schedule.stages,
        )  # fmt: skip

    def __call__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        alpha: float,
        beta: float,
        x_scale: torch.Tensor | None,
        w_scale: torch.Tensor | None,
    ) -> None:
        rows, cols = x.shape[-2], w.shape[-2]
        if self.swap:
            x, w, rows, cols, x_scale, w_scale = w, x, cols, rows, w_scale, x_scale
        slots = -(-rows // self.block_r) * -(-cols // self.block_c)
        if y.dim() == 3:
            slots *= y.shape[0]
        if slots >= MOST or rows >= MOST or cols >= MOST:
            raise ShapeError(f"a product of {tuple(y.shape)} has more tiles or rows than 2**31 - 1")
        partials = counters = None
        programs = slots
        a: Any = x
        b: Any = w
        if self.tma:
            a = _blocks(x, self.block_r, self.block_k, self.a_turned)
            b = _blocks(w, self.block_c, self.block_k, self.b_turned)
        if self.split:
            programs *= self.leaves
            partials = torch.empty(
                programs * self.block_r * self.block_c, dtype=torch.float32, device=y.device
            )
            counters = arrivals(y.device, slots)
        self.launch(
            (programs,), a, b, c, y, x_scale, w_scale, partials, counters, rows, cols,
            *self.numbers, float(alpha), float(beta),
        )  # fmt: skip


class _Persistent:
    """`persistent_kernel` for operands of given strides; M is free."""

    def __init__(
        self,
        contract: LinearContract,
        wanted: GemmSchedule,
        schedule: GemmSchedule,
        leaves: Leaves,
        epilogue: dict[str, Any],
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        *_: Any,
    ) -> None:
        self.kept = contract, wanted  # see `run`
        self.block_m, self.block_n = schedule.block_m, schedule.block_n
        self.block_k = schedule.block_k
        self.x_turned, self.w_turned = not _by_rows(x), not _by_rows(w)
        self.numbers = x.shape[-1], leaves.length, *_strides(c)[:2]
        self.processors = processors(y.device)
        self.launch = prepare(
            persistent_kernel,
            BLOCK_R=self.block_m, BLOCK_C=self.block_n, BLOCK_K=self.block_k, GROUP=schedule.group,
            LEAVES=leaves.count, PAIRWISE=leaves.pairwise, A_TURNED=self.x_turned,
            B_TURNED=self.w_turned,
            **epilogue, num_warps=schedule.warps, num_stages=schedule.stages,
        )  # fmt: skip

    def __call__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        alpha: float,
        beta: float,
        *_: Any,
    ) -> None:
        rows, cols = x.shape[0], w.shape[0]
        tiles = -(-rows // self.block_m) * -(-cols // self.block_n)
        if tiles >= MOST or rows >= MOST:
            raise ShapeError(f"a product of {tuple(y.shape)} has more tiles or rows than 2**31 - 1")
        self.launch(
            (min(self.processors, tiles),),
            _blocks(x, self.block_m, self.block_k, self.x_turned),
            _blocks(w, self.block_n, self.block_k, self.w_turned),
            descriptor(y, [self.block_m, self.block_n // 2]),
            c, rows, cols, *self.numbers, float(alpha), float(beta),
        )  # fmt: skip


class _Specialized:
    """`specialized_kernel` for operands of given strides; M is free."""

    def __init__(
        self,
        contract: LinearContract,
        wanted: GemmSchedule,
        schedule: GemmSchedule,
        leaves: Leaves,
        epilogue: dict[str, Any],
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        *_: Any,
    ) -> None:
        self.kept = contract, wanted  # see `run`
        self.block_n, self.block_k = schedule.block_n, schedule.block_k
        self.leaves, self.split = leaves.count, schedule.split
        self.x_turned, self.w_turned = not _by_rows(x), not _by_rows(w)
        self.numbers = x.shape[-1], leaves.length, *_strides(c)[:2]
        self.processors = processors(y.device)
        blocks = (
            _shape(SLAB, self.block_k, self.x_turned),
            _shape(self.block_n, self.block_k, self.w_turned),
        )
        self.blocks = [
            (block, shared_layout(block, t.dtype))
            for block, t in zip((*blocks, [SLAB, self.block_n]), (x, w, y), strict=True)
        ]
        self.launch = prepare(
            specialized_kernel,
            BLOCK_C=self.block_n, BLOCK_K=self.block_k, STAGES=schedule.stages,
            GROUP=schedule.group, LEAVES=leaves.count, PAIRWISE=leaves.pairwise, SPLIT=self.split,
            A_TURNED=self.x_turned, B_TURNED=self.w_turned, **epilogue, num_warps=4, num_stages=1,
        )  # fmt: skip

    def __call__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        alpha: float,
        beta: float,
        *_: Any,
    ) -> None:
        rows, cols = x.shape[0], w.shape[0]
        tiles = -(-rows // (2 * SLAB)) * -(-cols // self.block_n)
        items = tiles * self.leaves if self.split else tiles
        if items >= MOST or rows >= MOST:
            raise ShapeError(f"a product of {tuple(y.shape)} has more tiles or rows than 2**31 - 1")
        partials = counters = None
        if self.split:
            partials = torch.empty(
                items * 2 * SLAB * self.block_n, dtype=torch.float32, device=y.device
            )
            counters = arrivals(y.device, 2 * tiles)
        (a_block, b_block, y_block) = self.blocks
        self.launch(
            (min(self.processors, items),),
            descriptor(x.mT if self.x_turned else x, *a_block),
            descriptor(w.mT if self.w_turned else w, *b_block),
            descriptor(y, *y_block),
            c, partials, counters, rows, cols, *self.numbers, float(alpha), float(beta),
        )  # fmt: skip


_PLANS: dict[tuple[Any, ...], _Plain | _Persistent | _Specialized] = {}


def _fetchable(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, store: bool) -> bool:
    """Whether the copy engine can fetch blocks of x and w, and store those of y.

    A tensor core reads transposed blocks of 16-bit types only.
    """
    turnable = x.element_size() == 2
    return all(_by_rows(t) or (turnable and _by_rows(t.mT)) for t in (x, w)) and (
        not store or _by_rows(y)
    )


def _by_rows(x: torch.Tensor) -> bool:
    """Whether the copy engine can move blocks of the rows of a matrix."""
    if x.dim() != 2 or x.data_ptr() % 16 or x.shape[1] == 0:
        return False
    row, col = x.stride()
    pitch = row * x.element_size()
    return col == 1 and 0 < pitch < 1 << 40 and pitch % 16 == 0


def _blocks(x: torch.Tensor, rows: int, cols: int, turned: bool) -> Any:
    """A descriptor of blocks [rows, cols] of x, or, turned, [cols, rows] of its transpose."""
    return descriptor(x.mT if turned else x, _shape(rows, cols, turned))


def _shape(rows: int, cols: int, turned: bool) -> list[int]:
    return [cols, rows] if turned else [rows, cols]


@lru_cache(maxsize=64)
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a device; where there is none, a few."""
    if device.type != "cuda":
        return 3
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
