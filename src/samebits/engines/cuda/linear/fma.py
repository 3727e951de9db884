"""Launches chains of IEEE fma, for fp32 and for the portable contracts: fma.cu and fma_few.cu.

Their bits are those of every other schedule of the contract. What they take is narrower (see
`refusal`); the rest is the Triton kernels'.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from samebits.contract import CUDA_FMA, Chain, LinearContract
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.launch import REAL, WORD, launcher
from samebits.engines.cuda.linear import operands
from samebits.engines.schedule import POWERS, Schedule

_HERE = Path(__file__).parent
_HEADER = _HERE / "fma.cuh"
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
#: Lanes of a warp along rows and columns, as in fma.cu.
_LANES = 8, 4
#: Threads of a block, elements of k of a stage, and stages, as in fma_few.cu.
_FEW_THREADS, _FEW_DEPTH, _FEW_STAGES = 128, 128, 4


class FmaSchedule(Schedule, tag="cuda.fma", frozen=True, kw_only=True):
    """How a product [M, K] x [N, K] of many rows is cut into work for the CUDA cores.

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

    allowed: ClassVar[Mapping[str, Container[int]]] = {
        **dict.fromkeys(("warp_rows", "warp_columns"), POWERS[:3]),
        **dict.fromkeys(("thread_rows", "thread_columns"), (4, 8)),
        "band": range(1, 1 << 16),
    }

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.warp_rows * _LANES[0] * self.thread_rows

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.warp_columns * _LANES[1] * self.thread_columns


class FewFmaSchedule(Schedule, tag="cuda.fma.few", frozen=True, kw_only=True):
    """How a product of few rows is: a lane has a column, and a block walks all of k.

    Attributes:
        columns: of a block: 8, 16 or 32.
        thread_rows: rows of a thread.
    """

    columns: int = 32
    thread_rows: int = 1

    allowed: ClassVar[Mapping[str, Container[int]]] = {
        "columns": (8, 16, 32),
        "thread_rows": range(1, 5),
    }

    @property
    def rows(self) -> int:
        """The most rows that a block takes."""
        return _FEW_THREADS // self.columns * self.thread_rows

    def shared(self, size: int) -> int:
        """Bytes of shared memory for operands of `size` bytes an element."""
        return _FEW_STAGES * (self.columns + self.rows) * (_FEW_DEPTH * size + 16)


#: Tiles worth trying, the largest first. Each leaves room for two blocks on a processor.
TILES = (
    FmaSchedule(),
    FmaSchedule(warp_rows=2, warp_columns=4, thread_rows=4),
    FmaSchedule(warp_rows=2, warp_columns=2, thread_rows=4),
    FmaSchedule(warp_rows=1, warp_columns=4, thread_rows=4),
    FmaSchedule(warp_rows=1, warp_columns=4, thread_rows=4, thread_columns=4),
)
_PROCESSORS = 132
#: Up to so many rows the time is that of reading the weight.
FEW = 16


def choose(m: int, n: int) -> FmaSchedule | FewFmaSchedule:
    """A decent schedule for m rows: the largest tile that leaves no processor idle."""
    if m <= FEW:
        return few(m, n)[0]
    fits = (s for s in TILES if -(-m // s.rows) * -(-n // s.columns) >= _PROCESSORS)
    return next(fits, TILES[-1])


def few(m: int, n: int) -> list[FewFmaSchedule]:
    """Schedules for few rows, the best first: the widest that leaves no processor idle."""
    made = [
        FewFmaSchedule(columns=columns, thread_rows=-(-m * columns // _FEW_THREADS))
        for columns in (32, 16, 8)
    ]
    return sorted(made, key=lambda s: (-(-n // s.columns) < _PROCESSORS - 4, -s.columns))


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
    if min(*y.shape, x.shape[-1]) < 1 or max(*y.shape, x.shape[-1]) >= 2**31 - 256:
        return "an axis is empty, or longer than the kernel counts"
    if y.stride(-1) != 1:
        return f"columns of y are apart: strides {y.stride()}"
    return operands.refusal(contract, x, w, c, {"x": x, "w": w})


class Product:
    """A launch made ready for operands of these strides and dtypes; M is free.

    The operands are such that there is no `refusal`.

    Attributes:
        repeats: a launch and no other memory than the operands': it may be `recorded`.
    """

    repeats = True

    def __init__(
        self,
        schedule: FmaSchedule | FewFmaSchedule,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
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
    schedule: FmaSchedule | FewFmaSchedule,
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
    if isinstance(schedule, FewFmaSchedule) and len(y) > schedule.rows:
        why = f"{len(y)} rows are more than the {schedule.rows} of {schedule}"
    if why is None:
        Product(schedule, x, w, y)(len(y), 1, x, w, y, c, float(alpha), float(beta))
    return why


def constants(schedule: FmaSchedule | FewFmaSchedule, input: int, output: int) -> dict[str, int]:
    """The kernel's compile-time parameters; types as fma.cuh numbers them."""
    types = {"IN": input, "OUT": output}
    if isinstance(schedule, FewFmaSchedule):
        return {"COLS": schedule.columns, "TM": schedule.thread_rows, **types}
    return {
        "WR": schedule.warp_rows, "WC": schedule.warp_columns, "TM": schedule.thread_rows,
        "TN": schedule.thread_columns, "BAND": schedule.band, **types,
    }  # fmt: skip


@functools.cache
def _launcher(
    schedule: FmaSchedule | FewFmaSchedule, input: torch.dtype, output: torch.dtype
) -> Any:
    values = constants(schedule, _TYPES[input], _TYPES[output])
    slots = (*(WORD,) * 10, REAL, REAL)
    name, threads, shared = "linear_fma", _FEW_THREADS, 0
    if isinstance(schedule, FewFmaSchedule):
        name, shared = "linear_fma_few", schedule.shared(input.itemsize)
    else:
        threads = 32 * schedule.warp_rows * schedule.warp_columns
    source = _HERE / f"{name.removeprefix('linear_')}.cu"
    return launcher(
        name, lambda: nvrtc.compile_source(source, "sm_90a", values, (_HEADER,)), slots,
        threads=threads, shared=shared,
    )  # fmt: skip
