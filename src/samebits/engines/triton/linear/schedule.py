"""Schedules of matrix products as data, and an analytical default for shapes nobody has timed."""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache
from typing import ClassVar

from msgspec.structs import replace

from samebits.contract import CUDA_FMA, PORTABLE, LinearContract
from samebits.contract.arithmetic import FORMATS
from samebits.engines.schedule import BUCKETS, POWERS, Schedule, ScheduleKey

#: Leaves of a pairwise fold: every one is a loop of its own in the kernel.
LONGEST_PAIRWISE = 16
#: Leaves that may have a CTA each: the fold loads them all at once.
LONGEST_SPLIT = 16
#: Bytes of shared memory that blocks in flight may take on sm_90 (of 227 KiB).
SHARED = 226 << 10
#: Streaming multiprocessors of an H100 or H200.
PROCESSORS = 132


class GemmSchedule(Schedule, tag="triton.gemm", frozen=True, kw_only=True):
    """How a product [M, K] x [N, K] is cut into work for the chip.

    Attributes:
        block_m, block_n, block_k: the tile. Powers of two from 16 on.
        warps, stages: warps of a program, and blocks of k in flight.
        swap: the transposed product, weights on the 64-wide side of the instruction.
        split: every leaf of the tree has a CTA of its own, and the last one to arrive folds.
        tma: blocks of the operands arrive by the copy engine.
        persistent: one CTA a processor walks over tiles; tma is implied.
        group: tiles along the first axis that run side by side, for the L2 cache.
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int = 4
    stages: int = 4
    swap: bool = False
    split: bool = False
    tma: bool = False
    persistent: bool = False
    group: int = 8

    allowed: ClassVar[Mapping[str, Container[int]]] = {
        **dict.fromkeys(("block_m", "block_n", "block_k"), POWERS[4:10]),
        "warps": POWERS[:5],
        "stages": range(1, 17),
        "group": range(1, 1 << 16),
    }

    @property
    def plain(self) -> GemmSchedule:
        """The nearest schedule that takes any strides."""
        if self.persistent:
            return replace(self, block_m=128, block_n=128, warps=8, tma=False, persistent=False)
        return replace(self, tma=False)


@lru_cache(maxsize=4096)
def fitting(
    schedule: GemmSchedule, contract: LinearContract, leaf: int, leaves: int, out_size: int
) -> GemmSchedule:
    """`schedule`, or the nearest one that can compute `contract` with leaves of that length.

    Results take `out_size` bytes each.

    On sm_90 fp8 has the contract's bits from `wgmma` alone: 64 rows and 4 warps at least. An fma
    chain is unrolled along a block of k, so that block is short.
    """
    s = schedule
    size = FORMATS[contract.input].bits // 8
    block_k = s.block_k
    while leaves > 1 and block_k > 32 and leaf % block_k:
        block_k //= 2
    if contract.arithmetic == CUDA_FMA:
        area = 128 * 64 if s.warps >= 8 else 64 * 64
        block_m, block_n = min(s.block_m, 64), s.block_n
        s = replace(
            s, block_m=block_m, block_n=min(block_n, area // block_m, 128), tma=False,
            persistent=False, stages=min(s.stages, 3),
        )  # fmt: skip
        block_k = min(block_k, 32)
    elif size == 1:
        wide = {"block_n": max(s.block_n, 64)} if s.swap else {"block_m": max(s.block_m, 64)}
        s = replace(s, warps=max(s.warps, 4), **wide)
    if contract.scaling != "none":
        s = replace(s, tma=s.tma or s.persistent, persistent=False)
    split = s.split and 1 < leaves <= LONGEST_SPLIT and contract.scaling != "block"
    stages = s.stages
    room = SHARED - (s.block_m * s.block_n // 2 * out_size if s.persistent else 0)
    while stages > 1 and stages * (s.block_m + s.block_n) * block_k * size > room:
        stages -= 1
    if leaves > 1 and leaf % block_k:
        s = replace(s, tma=False, persistent=False)
    return replace(s, block_k=block_k, stages=stages, split=split)


#: Tiles that leave processors idle if they are too large: from the smallest to the largest.
_SMALL = (
    GemmSchedule(block_m=16, block_n=64, block_k=256, stages=4, swap=True),
    GemmSchedule(block_m=32, block_n=64, block_k=128, stages=5, swap=True),
    GemmSchedule(block_m=64, block_n=64, block_k=128, stages=4, swap=True),
    GemmSchedule(block_m=128, block_n=64, block_k=128, stages=4, tma=True),
)
#: Tiles for more work than one wave, and the time of one, the first one's being 1 (an H200).
_LARGE = (
    (GemmSchedule(block_m=128, block_n=64, block_k=64, stages=5, swap=True, tma=True), 1.0),
    (GemmSchedule(block_m=128, block_n=128, block_k=64, warps=8, stages=5, persistent=True), 1.75),
    (GemmSchedule(block_m=128, block_n=256, block_k=64, warps=8, stages=4, persistent=True), 3.2),
)


def default(key: ScheduleKey, bucket: int) -> GemmSchedule:
    """A decent schedule for a bucket of rows: a pure function of the weight's shape and dtype.

    Few rows: the time is that of reading the weight, so the smallest tiles that make one wave, with
    a CTA for every leaf if that fits too, or if the tiles alone leave processors idle. Many rows:
    the tile whose waves take the least time.

    Args:
        key: the key of the weight.
        bucket: indexes BUCKETS; len(BUCKETS) is what lies beyond.
    """
    m = BUCKETS[bucket] if bucket < len(BUCKETS) else 2 * BUCKETS[-1]
    n = key.n or 1
    if key.dtype == "fp32" or key.device == PORTABLE:
        return _fma(m, n)
    size = FORMATS[key.dtype].bits // 8
    leaves = _leaves(key.tree)
    small = [s for s in _SMALL if s.block_m < 2 * max(m, 9)]
    for parts in dict.fromkeys((leaves, 1)):
        for s in small:
            if _tiles(s, m, n) * parts <= PROCESSORS:
                return replace(s, block_k=s.block_k * 2 // size, split=parts > 1)
        if parts > 1 and m <= small[-1].block_m <= 32 and _tiles(small[-1], m, n) <= PROCESSORS:
            # Two on a processor: leaves are too short for a walk through all of them to pay.
            return replace(small[-1], block_k=128 * 2 // size, stages=4, split=True)
    if m <= small[-1].block_m:
        s = small[-1]
    else:
        # Two accumulators of 128 x 256 do not fit into the registers.
        fitting_tiles = _LARGE if key.tree == "chain" else _LARGE[:2]
        s = min(fitting_tiles, key=lambda c: c[1] * -(-_tiles(c[0], m, n) // PROCESSORS))[0]
    return replace(s, block_k=s.block_k * 2 // size)


def _tiles(s: GemmSchedule, m: int, n: int) -> int:
    return -(-m // s.block_m) * -(-n // s.block_n)


def _leaves(tree: str) -> int:
    """Leaves of a tree that may have a CTA each; 1 where that is not worth it."""
    kind, _, parts = tree.partition("(")
    return int(parts.rstrip(")")) if kind in ("split", "balanced") and parts[:-1].isdigit() else 1


def _fma(m: int, n: int) -> GemmSchedule:
    """fp32 on the CUDA cores: tiles of 64 x 64 where they fill the chip, else smaller ones."""
    block_m = 16 if m <= 16 else 32 if m <= 32 else 64
    tiles = -(-m // block_m) * -(-n // 64)
    block_n = 64 if tiles >= PROCESSORS else 32
    return GemmSchedule(block_m=block_m, block_n=block_n, block_k=32, stages=3)


def candidates(key: ScheduleKey, bucket: int) -> tuple[GemmSchedule, ...]:
    """Schedules that a tuner should time for a bucket of rows: all have the same bits.

    Args:
        key, bucket: as for `default`.
    """
    m = BUCKETS[bucket] if bucket < len(BUCKETS) else 2 * BUCKETS[-1]
    if key.dtype == "fp32" or key.device == PORTABLE:
        tiles = ((16, 32, 4), (16, 64, 4), (32, 32, 4), (32, 64, 4), (64, 32, 4), (64, 64, 4),
                 (64, 128, 8))  # fmt: skip
        found = [
            GemmSchedule(block_m=bm, block_n=bn, block_k=bk, warps=warps, stages=3)
            for bm, bn, warps in tiles
            for bk in (16, 32)
            if bm <= max(16, 2 * m)
        ]
        return tuple(found)
    size = FORMATS[key.dtype].bits // 8
    folds = (False, True) if key.tree.startswith(("split", "balanced")) else (False,)
    return tuple(
        GemmSchedule(
            block_m=bm, block_n=bn, block_k=bk * 2 // size, warps=warps, stages=stages,
            swap="swap" in how, tma="tma" in how, persistent=how == "persistent", split=split,
        )
        for low, high, bm, bn, bk, warps, stages, hows in _TILES
        for how in hows
        for split in folds
        if low <= m <= high
        and not (split and how == "persistent")
        and (split or "leaf" not in how)
        and (size == 2 or "swap" in how or bm >= 64)
    )  # fmt: skip


#: (from m, up to m, block_m, block_n, block_k in 16-bit elements, warps, stages, how). Where that
#: says "leaf", tiles for leaves with a CTA each: those of some 4096 features make one wave.
_TILES: tuple[tuple[int, int, int, int, int, int, int, tuple[str, ...]], ...] = (
    (1, 16, 16, 64, 256, 4, 4, ("swap",)),
    (1, 16, 16, 64, 256, 4, 5, ("swap",)),
    (1, 16, 16, 64, 128, 4, 6, ("swap",)),
    (1, 16, 16, 64, 64, 4, 8, ("swap",)),
    (1, 16, 16, 32, 256, 4, 6, ("",)),
    (1, 16, 16, 64, 128, 4, 4, ("swap leaf",)),
    (17, 64, 16, 64, 128, 4, 6, ("swap tma",)),
    (17, 64, 32, 64, 256, 4, 3, ("swap",)),
    (17, 128, 32, 64, 128, 4, 5, ("swap", "swap tma")),
    (17, 128, 32, 64, 128, 4, 4, ("swap",)),
    (33, 64, 64, 64, 64, 4, 6, ("swap tma leaf",)),
    (33, 256, 64, 64, 128, 4, 4, ("swap", "swap tma")),
    (65, 256, 64, 64, 128, 4, 3, ("swap tma",)),
    (65, 1024, 64, 128, 64, 4, 5, ("swap tma",)),
    (65, 2048, 128, 64, 64, 4, 5, ("swap tma",)),
    (65, 1024, 128, 64, 128, 4, 4, ("tma",)),
    (129, 1 << 20, 128, 128, 64, 8, 5, ("persistent",)),
    (257, 1 << 20, 128, 256, 64, 8, 3, ("persistent",)),
    (257, 1 << 20, 128, 256, 64, 8, 4, ("persistent",)),
)
