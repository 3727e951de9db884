"""Chains of IEEE fma in tiles of many sizes: fma.cu."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import ClassVar

from samebits.engines.schedule import POWERS, Schedule

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

    kernel: ClassVar[str] = "linear_fma"
    source: ClassVar[Path] = Path(__file__).with_name("fma.cu")
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
    def threads(self) -> int:
        """Threads of a block."""
        return _LANES * (self.warps + self.fetchers)

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

    def constants(self, input: int, output: int) -> dict[str, int]:
        """The kernel's compile-time parameters; types as fma.cuh numbers them."""
        return {
            "WR": self.warp_rows, "WC": self.warp_columns, "LR": self.lane_rows,
            "TM": self.thread_rows, "TN": self.thread_columns, "BK": self.depth,
            "STAGES": self.stages, "AHEAD": self.ahead, "UNROLL": self.unroll,
            "HELP": self.fetchers, "BAND": self.band, "IN": input, "OUT": output,
        }  # fmt: skip


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
