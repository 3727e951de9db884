"""Launches the products of fma.cu: chains of IEEE fma, for fp32 and for the portable contracts.

Their bits are those of every other schedule of the contract. What they take is narrower (see
`refusal`); the rest is the Triton kernels'.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from samebits.contract import CUDA_FMA, Chain, LinearContract
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.launch import REAL, WORD, launcher
from samebits.engines.schedule import Schedule

_SOURCE = Path(__file__).with_name("fma.cu")
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
#: Elements along k of a block, and lanes of a warp along rows and columns, as in fma.cu.
_LANES = 8, 4


class FmaSchedule(Schedule, tag="cuda.fma", frozen=True, kw_only=True):
    """How a product [M, K] x [N, K] is cut into work for the CUDA cores.

    Attributes:
        warp_rows, warp_columns: warps of a block.
        thread_rows, thread_columns: results of a thread, multiples of 4.
        band: rows of tiles that are worked on side by side, for the L2 cache.
    """

    warp_rows: int = 2
    warp_columns: int = 4
    thread_rows: int = 8
    thread_columns: int = 8
    band: int = 8

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.warp_rows * _LANES[0] * self.thread_rows

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.warp_columns * _LANES[1] * self.thread_columns


#: Tiles worth trying, the largest first. Each leaves room for two blocks on a processor.
TILES = (
    FmaSchedule(),
    FmaSchedule(warp_rows=2, warp_columns=4, thread_rows=4),
    FmaSchedule(warp_rows=2, warp_columns=2, thread_rows=4),
    FmaSchedule(warp_rows=1, warp_columns=4, thread_rows=4),
    FmaSchedule(warp_rows=1, warp_columns=4, thread_rows=4, thread_columns=4),
)
_PROCESSORS = 132


def choose(m: int, n: int) -> FmaSchedule:
    """A decent schedule: the largest tile of which there is one for every processor."""
    fits = (s for s in TILES if -(-m // s.rows) * -(-n // s.columns) >= _PROCESSORS)
    return next(fits, TILES[-1])


def refusal(
    contract: LinearContract,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None = None,
) -> str | None:
    """Why `Product` does not take these operands of this contract; None if it does."""
    if contract.arithmetic != CUDA_FMA or contract.tree != Chain() or contract.scaling != "none":
        return f"the contract is no chain of fma: {contract.tree}, {contract.arithmetic}"
    if not {"alpha", "bias"} >= set(contract.epilogue):
        return f"the epilogue is {contract.epilogue}"
    if x.dim() != 2 or w.dim() != 2:
        return "the product is batched"
    if min(*y.shape, x.shape[1]) < 1 or max(*y.shape, x.shape[1]) >= 2**31 - 256:
        return "an axis is empty, or longer than the kernel counts"
    for name, t in (("x", x), ("w", w)):
        if t.stride(1) != 1 or t.stride(0) * t.element_size() % 16 or t.data_ptr() % 16:
            return f"rows of {name} are not aligned: strides {t.stride()} at {t.data_ptr():#x}"
    if y.stride(1) != 1:
        return f"columns of y are apart: strides {y.stride()}"
    if c is not None and not (
        c.dtype is x.dtype and c.stride(-1) == 1 and not any(c.stride()[:-1])
    ):
        return "c is no row of x's dtype for all rows"
    return None


class Product:
    """A launch made ready for operands of these strides and dtypes; M is free.

    The operands are such that there is no `refusal`.

    Attributes:
        repeats: a launch and no other memory than the operands': it may be `recorded`.
    """

    repeats = True

    def __init__(
        self, schedule: FmaSchedule, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor
    ) -> None:
        self.n, self.k = w.shape
        self.tile = schedule.rows, schedule.columns
        self.pitches = x.stride(0), w.stride(0), y.stride(0)
        self.launch = _launcher(schedule, x.dtype, y.dtype)

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
        tiles = -(-m // self.tile[0]) * -(-self.n // self.tile[1])
        self.launch((tiles,), x, w, c, y, *self.pitches, m, self.n, self.k, alpha, beta)


def run(
    contract: LinearContract,
    schedule: FmaSchedule,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> str | None:
    """y = epilogue(x @ w.T) with the bits of `contract`, if the kernel takes the operands.

    Returns:
        None; or why it does not take them, and nothing has been computed: take another schedule of
        the contract then.
    """
    c = None if beta == 0 else c
    why = refusal(contract, x, w, y, c)
    if why is None:
        Product(schedule, x, w, y)(len(y), 1, x, w, y, c, float(alpha), float(beta))
    return why


def constants(schedule: FmaSchedule, input: int, output: int) -> dict[str, int]:
    """The kernel's compile-time parameters; types as fma.cu numbers them."""
    return {
        "WR": schedule.warp_rows, "WC": schedule.warp_columns, "TM": schedule.thread_rows,
        "TN": schedule.thread_columns, "BAND": schedule.band, "IN": input, "OUT": output,
    }  # fmt: skip


@functools.cache
def _launcher(schedule: FmaSchedule, input: torch.dtype, output: torch.dtype) -> Any:
    values = constants(schedule, _TYPES[input], _TYPES[output])
    return launcher(
        "linear_fma", lambda: nvrtc.compile_source(_SOURCE, "sm_90a", values),
        (*(WORD,) * 10, REAL, REAL), threads=32 * schedule.warp_rows * schedule.warp_columns,
    )  # fmt: skip
