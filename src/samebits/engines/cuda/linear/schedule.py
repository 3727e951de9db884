"""Schedules of the products in CUDA C++."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import ClassVar

from samebits.engines.leaves import Leaves
from samebits.engines.schedule import Schedule

#: Bytes of shared memory of a block on sm_90, and of a warp's place for results on their way out.
_SHARED, _STAGING = 227 << 10, 2048
_MOST_STAGES = 8
#: Columns of a tile at most, by the accumulators that a fold in registers needs beside the leaf's.
WIDEST, WIDEST_FOLD = 256, {0: 256, 1: 192, 2: 128, 3: 96}


class ProductSchedule(Schedule, tag="cuda.linear", frozen=True, kw_only=True):
    """How a product [M, K] x [N, K] is cut into work for the chip.

    Attributes:
        groups: warpgroups of 64 rows that share a tile, 1 or 2.
        columns: of a tile; a multiple of 8, at most 256; fewer where leaves are folded in
            registers (`WIDEST_FOLD`).
        chunks: 64s of k that travel together.
        split: a tile is a cluster's, with a block for each of 2, 4 or 8 leaves.
        share: 1: neighbours along rows of tiles fetch their part of w for each other; 2: neighbours
            along columns their part of x; 0: every block fetches for itself.
        band: rows of tiles that are worked on side by side, for the L2 cache.
    """

    groups: int = 2
    columns: int = 128
    chunks: int = 1
    split: bool = False
    share: int = 0
    band: int = 8

    allowed: ClassVar[Mapping[str, Container[int]]] = {
        "groups": (1, 2),
        "columns": range(8, WIDEST + 1, 8),
        "chunks": (1, 2),
        "share": (0, 1, 2),
        "band": range(1, 1 << 16),
    }

    @property
    def height(self) -> int:
        """Rows of the tiles of the blocks that walk together."""
        return self.rows * (1 + (self.share == 1))

    @property
    def width(self) -> int:
        """Columns of the tiles of the blocks that walk together."""
        return self.columns * (1 + (self.share == 2))

    @property
    def boxes(self) -> tuple[int, int]:
        """Rows of x and of w that one bulk copy brings."""
        half_x, half_w = self.share == 2, self.share == 1
        return self.rows // (1 + half_x), self.columns // (1 + half_w)

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return 64 * self.groups

    def takes(self, leaves: Leaves) -> bool:
        """Whether the kernel can fold such leaves by this schedule."""
        if leaves.count > 1 and leaves.length % (64 * self.chunks):
            return False
        if self.split:
            return leaves.count in (2, 4, 8) and not self.share
        if self.share == 1 and self.columns % 16:  # halves are whole groups of eight rows
            return False
        return self.columns <= WIDEST_FOLD.get(accumulators(leaves), 0)

    @property
    def stages(self) -> int:
        """Blocks of k in flight: what fits into shared memory."""
        rest = _SHARED - 4 * self.groups * _STAGING - 16 * _MOST_STAGES
        return min(_MOST_STAGES, rest // self._stage)

    def shared(self, parts: int, check: bool = False) -> int:
        """Bytes of shared memory of a block, one of `parts` that share a tile, as in product.cu;
        `check`: leaves are sealed."""
        octets = -(-self.columns // 8 // parts)
        exchange = parts * (octets + check) * self.rows * 32 if parts > 1 else 0
        ring = max(self.stages * self._stage, exchange)
        return ring + 4 * self.groups * _STAGING + 16 * self.stages

    @property
    def _stage(self) -> int:
        return (self.rows + self.columns) * 128 * self.chunks


def accumulators(leaves: Leaves) -> int:
    """How many, beside the leaf's own, fold the leaves in registers; -1: the kernel cannot."""
    if leaves.count == 1:
        return 0
    if not leaves.pairwise:
        return 1
    return leaves.count.bit_length() - 1 if leaves.count & leaves.count - 1 == 0 else -1
