"""Chains of IEEE fma for few rows and few columns, all of a tile in one warp: few.cu.

There a product takes what a chain takes, four cycles a step, if nothing else stands in the way.
fma.cu is faster where a processor has more chains, or more to fetch.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import ClassVar

from samebits.engines.schedule import POWERS, Schedule

#: Lanes of a warp, warps that fetch, and stages in shared memory, of so many bytes a row.
_LANES, _FETCHERS, _STAGES, _ROW = 32, 3, 8, 528
_PROCESSORS = 132
#: What was measured, and is faster there: rows of a product, and columns and results a processor.
_ROWS, _COLUMNS, _RESULTS = 8, 16, 64


class FewSchedule(Schedule, tag="cuda.few", frozen=True, kw_only=True):
    """How a product [M, K] x [N, K] is cut into tiles of a warp.

    Attributes:
        rows, columns: of a tile: at most 64 results.

    Raises:
        ValueError: a value that the kernel cannot take.
    """

    rows: int = 1
    columns: int = 8

    kernel: ClassVar[str] = "linear_few"
    source: ClassVar[Path] = Path(__file__).with_name("few.cu")
    allowed: ClassVar[Mapping[str, Container[int]]] = {"rows": POWERS[:4], "columns": POWERS[3:5]}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows * self.columns > _RESULTS:
            raise ValueError(f"{self}: more than {_RESULTS} results of a warp")

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _LANES * (1 + _FETCHERS)

    def shared(self, size: int) -> int:
        """Bytes of shared memory: stages, fp32 whatever the `size` of an operand, and barriers."""
        return _STAGES * (self.rows + self.columns) * _ROW + 8 * (2 * _STAGES + 1)

    def tiles(self, m: int, n: int) -> int:
        """Tiles of a result [m, n]."""
        return -(-m // self.rows) * -(-n // self.columns)

    def constants(self, input: int, output: int) -> dict[str, int]:
        """The kernel's compile-time parameters; types as fma.cuh numbers them."""
        return {
            "ROWS": self.rows, "COLS": self.columns, "STAGES": _STAGES, "FETCH": _FETCHERS,
            "IN": input, "OUT": output,
        }  # fmt: skip


#: All there are.
TILES = tuple(
    FewSchedule(rows=rows, columns=columns)
    for rows in POWERS[:4] for columns in POWERS[3:5] if rows * columns <= _RESULTS
)  # fmt: skip


def faster(m: int, n: int) -> bool:
    """Whether the best of `TILES` is faster than all of fma.cu's for a result [m, n]."""
    return m <= _ROWS and n <= _COLUMNS * _PROCESSORS and m * n <= _RESULTS * _PROCESSORS


def cycles(s: FewSchedule, m: int, n: int, k: int) -> float:
    """About how long the busiest processor takes, in clock cycles.

    A step of all chains takes 3, and one for 24 bytes that a processor fetches meanwhile. That is
    within 11 % of an H200's times where this kernel is `faster`.
    """
    fetched = 4 * (s.rows + s.columns) * -(-s.tiles(m, n) // _PROCESSORS)
    return k * (3 + fetched / 24) + 3000
