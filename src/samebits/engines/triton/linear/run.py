"""The launcher: a contract, a schedule, tensors with any strides, a kernel.

Operands are views ``x [M, K]``, ``w [N, K]``, ``y [M, N]``, or with a batch axis in front; the
caller has checked their shapes, dtypes and devices.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from samebits.contract import CUDA_FMA, LinearContract, path
from samebits.contract.operands import SCALE_BLOCK
from samebits.engines import tickets
from samebits.engines.driver import _cuda
from samebits.engines.driver.memory import empty
from samebits.engines.leaves import Leaves, leaves_of
from samebits.engines.triton.launch import descriptor, prepare
from samebits.engines.triton.linear.kernel import gemm_kernel
from samebits.engines.triton.linear.persistent import persistent_kernel
from samebits.engines.triton.linear.schedule import (
    LONGEST_PAIRWISE,
    GemmSchedule,
    fitting,
)
from samebits.engines.triton.linear.workspace import arrivals
from samebits.errors import ContractError, ShapeError

#: Rows, columns and tiles are counted in 32 bits.
MOST = 2**31 - 1024
#: `Plan` by contract, schedule and operands.
_PLANS = _cuda.Memo(8192)
#: In elements: from this stride on, an offset inside a tile may not fit into 32 bits.
WIDE_FROM = 1 << 21


def _leaves(contract: LinearContract, k: int) -> Leaves:
    """How the contract's tree cuts k.

    Raises:
        ContractError: the kernels have no such tree.
    """
    leaves = leaves_of(contract.tree, k)
    if leaves.pairwise and leaves.count > LONGEST_PAIRWISE:
        raise ContractError(
            f"{contract.tree} cuts k = {k} into {leaves.count} leaves, and a pairwise fold takes "
            f"at most {LONGEST_PAIRWISE}: use longer leaves or an ascending fold"
        )
    return leaves


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
        c: bias, [N] or a view expanded to y's shape, or None. Not read if beta is 0.
        alpha, beta: factors of the product and of c.
        x_scale, w_scale: fp32, see `LinearContract.evaluate`.

    Raises:
        ContractError: a tree that the kernels do not have.
        ShapeError: more rows or columns than a kernel counts.
    """
    if beta == 0:
        c = None
    numbers = alpha != 1, beta != 1, tickets.checking()
    of = contract, schedule, x, w, y, c, *numbers, x_scale, w_scale
    plan = _PLANS.get(*of)
    if plan is None:
        plan = plan_for(contract, schedule, x, w, y, c, alpha, beta, x_scale, w_scale)
        _PLANS.put(plan, *of)
    batch = y.shape[0] if y.dim() == 3 else 1
    plan(y.shape[-2], batch, x, w, y, c, float(alpha), float(beta), x_scale, w_scale)


def plan_for(
    contract: LinearContract,
    schedule: GemmSchedule,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float = 1.0,
    beta: float = 1.0,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
) -> Plan:
    """A launch made ready for operands of these strides, alignments and dtypes.

    Arguments and errors as `run`. M, the batch and the values are free afterwards: the plan is
    called as ``plan(m, batch, x, w, y, c, alpha, beta, x_scale, w_scale)``, where x and y may have
    any leading axes over the same memory, and alpha or beta is 1 if it was.
    """
    leaves = _leaves(contract, x.shape[-1])
    shape = leaves.length, leaves.count, y.element_size()
    fit = fitting(schedule, contract, *shape)
    c_row, c_col, _ = _strides(c)
    epilogue = {
        "ALPHA": alpha != 1, "BIAS": _bias_kind(c_row, c_col, c), "BETA": beta != 1,
        "RELU": "relu" in contract.epilogue,
    }  # fmt: skip
    if (fit.persistent or fit.tma) and not _fetchable(x, w, y, fit.persistent):
        fit = fitting(fit.plain, contract, *shape)
    kind = _Persistent if fit.persistent else _Plain
    return kind(contract, fit, leaves, epilogue, x, w, y, c, x_scale, w_scale)


def _strides(x: torch.Tensor | None) -> tuple[int, int, int]:
    """(row, column, batch)."""
    if x is None:
        return 0, 0, 0
    s = x.stride()
    if len(s) == 1:
        return 0, s[0], 0
    return (s[0], s[1], 0) if len(s) == 2 else (s[1], s[2], s[0])


def _bias_kind(row: int, col: int, c: torch.Tensor | None) -> str:
    if c is None:
        return "none"
    return "both" if row and col else "rows" if row else "cols"


class _Plain:
    """`gemm_kernel` for operands of given strides; M and the batch are free.

    Attributes:
        repeats: a launch and no other memory than the operands': it may be `recorded`.
    """

    def __init__(
        self,
        contract: LinearContract,
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
        self.swap, self.leaves = schedule.swap, leaves.count
        self.split = schedule.split and leaves.count > 1
        self.ticket = _ticket(contract, schedule, x)
        self.repeats = not self.split
        self.tma = schedule.tma
        turns = [False, False]
        if self.tma:
            self.copies = _Copies(x, w, schedule.block_m, schedule.block_n, schedule.block_k)
            turns = [self.copies.x_turned, self.copies.w_turned]
        self.n, k = w.shape[-2:]
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
            FMA=contract.arithmetic == CUDA_FMA, TMA=self.tma, A_TURNED=turns[0],
            B_TURNED=turns[1],
            SCALING=contract.scaling, A_SCALE_BLOCK=spans[0], B_SCALE_BLOCK=spans[1],
            **epilogue, num_warps=schedule.warps, num_stages=schedule.stages,
        )  # fmt: skip

    def __call__(
        self,
        m: int,
        batch: int,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        alpha: float,
        beta: float,
        x_scale: torch.Tensor | None,
        w_scale: torch.Tensor | None,
    ) -> None:
        a: Any = x
        b: Any = w
        rows, cols = m, self.n
        if self.tma:
            a, b = self.copies(m, x, w)
        if self.swap:
            a, b, rows, cols, x_scale, w_scale = b, a, cols, rows, w_scale, x_scale
        slots = batch * -(-rows // self.block_r) * -(-cols // self.block_c)
        if slots >= MOST or rows >= MOST or cols >= MOST:
            raise ShapeError(f"a product of {tuple(y.shape)} has more tiles or rows than 2**31 - 1")
        partials = counters = seals = None
        programs = slots
        if self.split:
            programs *= self.leaves
            area = self.block_r * self.block_c
            partials = empty(programs, area, torch.float32, y.get_device())
            counters = arrivals(y.device, slots)
            if self.ticket is not None:
                seals = empty(programs, 2, torch.int64, y.get_device())
        self.launch(
            (programs,), a, b, c, y, x_scale, w_scale, partials, counters, seals, self.ticket,
            rows, cols,
            *self.numbers, alpha, beta,
        )  # fmt: skip


class _Persistent:
    """`persistent_kernel` for operands of given strides; M is free."""

    repeats = True

    def __init__(
        self,
        contract: LinearContract,
        schedule: GemmSchedule,
        leaves: Leaves,
        epilogue: dict[str, Any],
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        *_: Any,
    ) -> None:
        self.block_m, self.block_n = schedule.block_m, schedule.block_n
        self.copies = _Copies(x, w, schedule.block_m, schedule.block_n, schedule.block_k)
        self.n, self.y_row = w.shape[0], y.stride(0)
        self.numbers = x.shape[-1], leaves.length, *_strides(c)[:2]
        self.processors = processors(y.device)
        self.ticket = _ticket(contract, schedule, x)
        self.launch = prepare(
            persistent_kernel,
            BLOCK_R=self.block_m, BLOCK_C=self.block_n, BLOCK_K=schedule.block_k,
            GROUP=schedule.group, LEAVES=leaves.count, PAIRWISE=leaves.pairwise,
            A_TURNED=self.copies.x_turned, B_TURNED=self.copies.w_turned,
            **epilogue, num_warps=schedule.warps, num_stages=schedule.stages,
        )  # fmt: skip

    def __call__(
        self,
        m: int,
        batch: int,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        alpha: float,
        beta: float,
        *_: Any,
    ) -> None:
        tiles = -(-m // self.block_m) * -(-self.n // self.block_n)
        if tiles >= MOST or m >= MOST:
            raise ShapeError(f"a product of {tuple(y.shape)} has more tiles or rows than 2**31 - 1")
        self.launch(
            (min(self.processors, tiles),), *self.copies(m, x, w),
            descriptor(
                y, [self.block_m, self.block_n // 2], shape=(m, self.n), strides=(self.y_row, 1)
            ),
            c, self.ticket, m, self.n, *self.numbers, alpha, beta,
        )  # fmt: skip


Plan = _Plain | _Persistent


def _ticket(contract: LinearContract, schedule: GemmSchedule, x: torch.Tensor) -> int | None:
    """Address of what the kernel compares its path with, where paths are checked."""
    if not tickets.checking():
        return None
    subject = tickets.Subject("linear", contract.id, repr(schedule))
    expected = path.expected(contract.tree, x.shape[-1])
    return tickets.ticket(x.device, subject, expected).data_ptr()


class _Copies:
    """Tensor descriptors of x in blocks [x_rows, block_k] and of w in blocks [w_rows, block_k].

    Attributes:
        x_turned, w_turned: the descriptor, and its block, are those of the transpose.
    """

    def __init__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        x_rows: int,
        w_rows: int,
        block_k: int,
    ) -> None:
        self.n, self.k = w.shape
        self.x_turned, self.w_turned = not _by_rows(x), not _by_rows(w)
        self.x_step, self.w_step = max(x.stride()), max(w.stride())
        self.x_block = [block_k, x_rows] if self.x_turned else [x_rows, block_k]
        self.w_block = [block_k, w_rows] if self.w_turned else [w_rows, block_k]

    def __call__(self, m: int, x: torch.Tensor, w: torch.Tensor) -> tuple[Any, Any]:
        n, k = self.n, self.k
        return (
            descriptor(
                x, self.x_block, shape=(k, m) if self.x_turned else (m, k),
                strides=(self.x_step, 1),
            ),
            descriptor(
                w, self.w_block, shape=(k, n) if self.w_turned else (n, k),
                strides=(self.w_step, 1),
            ),
        )  # fmt: skip


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


@lru_cache(maxsize=64)
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a device; where there is none, a few."""
    if device.type != "cuda":
        return 3
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
