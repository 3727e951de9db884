"""Launches chains of IEEE fma, for fp32 and for the portable contracts: fma.cu.

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

SOURCE, HEADER = (Path(__file__).with_name(name) for name in ("fma.cu", "fma.cuh"))
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_LANES, _SHARED, _PROCESSORS = 32, 227 << 10, 132
#: Bytes a cycle from the L2 cache to a processor and from memory to all, and cycles until a block's
#: first product.
_CACHE, _MEMORY, _START = 22, 2280, 3000


class FmaSchedule(Schedule, tag="cuda.fma", frozen=True, kw_only=True):
    """How a product [M, K] x [N, K] is cut into work for the CUDA cores.

    Attributes:
        warp_rows, warp_columns: warps of a block.
        lane_rows: lanes of a warp along rows.
        thread_rows, thread_columns: results of a thread.
        depth: elements of k of a block in shared memory.
        stages: such blocks.
        ahead: vectors of 16 bytes along k that a thread has read before it multiplies them.
        unroll: such vectors in the code of a loop: a power of two, more than `ahead`.
        fetchers: warps that fetch for all others; 0: all fetch.
        band: rows of tiles that are worked on side by side, for the L2 cache.

    Raises:
        ValueError: a value that the kernel cannot take, more shared memory than there is, or rows
            of a block of k that the warps cannot share out.
    """

    warp_rows: int = 2
    warp_columns: int = 4
    lane_rows: int = 8
    thread_rows: int = 8
    thread_columns: int = 8
    depth: int = 32
    stages: int = 4
    ahead: int = 1
    unroll: int = 64
    fetchers: int = 0
    band: int = 8

    allowed: ClassVar[Mapping[str, Container[int]]] = {
        **dict.fromkeys(("warp_rows", "warp_columns", "lane_rows"), POWERS[:4]),
        **dict.fromkeys(("thread_rows", "thread_columns"), range(1, 9)),
        "depth": POWERS[5:9], "stages": range(2, 9), "ahead": (1, 3), "unroll": POWERS[1:7],
        "fetchers": (0, 1, 2, 4, 8),
        "band": range(1, 1 << 16),
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared(4) > _SHARED:
            raise ValueError(f"{self} asks for {self.shared(4)} bytes of shared memory")
        if self.unroll <= self.ahead:
            raise ValueError(f"{self}: unroll has to be more than ahead")
        if self.depth > 4 * _LANES * (self.fetchers or self.warps):
            raise ValueError(f"{self}: too few warps for blocks of {self.depth} elements of k")

    @property
    def warps(self) -> int:
        """Warps of a block that multiply."""
        return self.warp_rows * self.warp_columns

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.warp_rows * self.lane_rows * self.thread_rows

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.warp_columns * (_LANES // self.lane_rows) * self.thread_columns

    def tiles(self, m: int, n: int) -> int:
        """Tiles of a result [m, n]."""
        return -(-m // self.rows) * -(-n // self.columns)

    def shared(self, size: int) -> int:
        """Bytes of shared memory for operands of `size` bytes an element."""
        return self.stages * (self.rows + self.columns) * (self.depth * size + 16)


def _made(lanes: int, warps: tuple[int, int], threads: tuple[int, int], **more: int) -> FmaSchedule:
    return FmaSchedule(
        lane_rows=lanes, warp_rows=warps[0], warp_columns=warps[1], thread_rows=threads[0],
        thread_columns=threads[1], **more,
    )  # fmt: skip


_FEW = {"depth": 128, "ahead": 3}


def _tiles() -> tuple[FmaSchedule, ...]:
    few = (
        _made(1, (1, 1), (1, 1), **_FEW, fetchers=1), _made(1, (1, 4), (1, 1), depth=64, ahead=3),
        _made(2, (1, 2), (1, 1), **_FEW, fetchers=2), _made(2, (1, 4), (1, 1), **_FEW),
        _made(4, (1, 1), (1, 1), **_FEW, fetchers=1, stages=8),
        _made(4, (1, 4), (1, 1), **_FEW),
        _made(4, (1, 4), (1, 2), **_FEW), _made(4, (1, 4), (1, 4), depth=64, ahead=3),
        _made(4, (1, 4), (2, 1), **_FEW), _made(4, (1, 4), (2, 2), **_FEW),
        _made(4, (1, 4), (2, 4), depth=64, ahead=3), _made(4, (2, 2), (2, 2), **_FEW, fetchers=4),
    )  # fmt: skip
    four = tuple(
        _made(8, warps, (m, n), depth=64 if m * n <= 24 else 32, fetchers=4)
        for warps in ((2, 2), (1, 4)) for m in range(1, 9) for n in range(1, 9) if m * n <= 32
    )  # fmt: skip
    # Short loops where that is faster: the code of a long one does not stay in the processor.
    eight = tuple(
        _made(8, (2, 4), (m, n), unroll=2 if m * n in (32, 64) else 64)
        for m in range(8, 3, -1) for n in range(3, 9)
    )  # fmt: skip
    return few + four + eight


#: Tiles worth trying.
TILES = _tiles()


def choose(m: int, n: int, k: int) -> FmaSchedule:
    """The most promising schedule for [m, k] x [n, k]."""
    return ranked(m, n, k)[0]


def ranked(m: int, n: int, k: int) -> list[FmaSchedule]:
    """`TILES`, the most promising first; of two as fast the one that reads less."""
    return sorted(TILES, key=lambda s: (cycles(s, m, n, k), s.tiles(m, n) * (s.rows + s.columns)))


def cycles(s: FmaSchedule, m: int, n: int, k: int) -> float:
    """About how long the busiest processor takes, in clock cycles.

    A warp issues an fma a cycle on one of four units. Shared memory gives lanes two of their
    numbers in one, half of it while others multiply; the L2 cache gives a processor 22 bytes,
    memory all of them 2280. A chain takes four cycles a step, whatever else there is. Times of an
    H200 are 1.16 of this in the median.
    """
    results, operands = s.thread_rows * s.thread_columns, s.thread_rows + s.thread_columns
    issue, read = -(-s.warps // 4) * (results + operands / 4), s.warps * operands / 2
    step = max(issue + read / 2, 4.0, 4 * (s.rows + s.columns) / _CACHE)
    tiles = s.tiles(m, n)
    memory = 4 * n * k / _MEMORY * max(1.0, _PROCESSORS / 2 / tiles)
    return max(-(-tiles // _PROCESSORS) * (k * step + _START), memory)


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
        schedule: FmaSchedule,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
    ) -> None:
        self.n, self.k = w.shape
        self.schedule = schedule
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
        self.launch(
            (self.schedule.tiles(m, self.n),),
            x,
            w,
            c,
            y,
            *self.pitches,
            m,
            self.n,
            self.k,
            alpha,
            beta,
        )


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
    """The kernel's compile-time parameters; types as fma.cuh numbers them."""
    return {
        "WR": schedule.warp_rows, "WC": schedule.warp_columns, "LR": schedule.lane_rows,
        "TM": schedule.thread_rows, "TN": schedule.thread_columns, "BK": schedule.depth,
        "STAGES": schedule.stages, "AHEAD": schedule.ahead, "UNROLL": schedule.unroll,
        "HELP": schedule.fetchers, "BAND": schedule.band, "IN": input, "OUT": output,
    }  # fmt: skip


@functools.cache
def _launcher(schedule: FmaSchedule, input: torch.dtype, output: torch.dtype) -> Any:
    values = constants(schedule, _TYPES[input], _TYPES[output])
    return launcher(
        "linear_fma", lambda: nvrtc.compile_source(SOURCE, "sm_90a", values, (HEADER,)),
        (*(WORD,) * 10, REAL, REAL), threads=_LANES * (schedule.warps + schedule.fetchers),
        shared=schedule.shared(input.itemsize), pdl=True,
    )  # fmt: skip
