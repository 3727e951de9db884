"""Schedules of attention: what they hold, the ones to try, and the analytical default.

The M of a bucket is the longest query times the query heads of a KV head: the rows that one KV head
of one sequence has to serve.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import ClassVar

from msgspec.structs import replace

from samebits.contract import PORTABLE
from samebits.engines.cuda.attention.schedule import DecodeSchedule, PrefillSchedule
from samebits.engines.schedule import BUCKETS, POWERS, Schedule, ScheduleKey

#: Shared memory of a program that still leaves room on sm_90 (of 227 KiB).
SHARED = 208 << 10
#: Streaming multiprocessors of an H100 or H200.
PROCESSORS = 132


class AttentionSchedule(Schedule, tag="triton.attention", frozen=True, kw_only=True):
    """How an attention runs. Leaves, steps and arithmetic are the contract's, not here.

    Attributes:
        block_m: rows (positions times query heads of a KV head) in a tile, a power of two from 16.
        programs: at most, where several share the leaves of a tile: they write them to a workspace
            for a second kernel. One program folds its tile's leaves as they come.
        warps, stages: warps of a program of the first kernel, and steps of 64 keys in flight.
        spread: decoding with so few leaves that they would leave most of the chip idle spreads
            each over several processors (`latency`), `values` columns a program.
        span: steps taken together in decoding, where every program has a processor of its own: then
            the time is that of one leaf's steps, one after the other.
        columns: values that a program of the fold takes.
        batch: leaves that it has in flight.
        pdl: the fold is launched while the first kernel runs.
        prefill: how the warp-specialised kernel runs, which then takes the work that it covers;
            None: it takes none.
        decode: the same for the kernels of one position a sequence, where there are few.
    """

    block_m: int
    programs: int = 256
    warps: int = 4
    stages: int = 3
    spread: bool = True
    values: int = 16
    span: int = 2
    columns: int = 32
    batch: int = 32
    pdl: bool = True
    prefill: PrefillSchedule | None = None
    decode: DecodeSchedule | None = None

    allowed: ClassVar[Mapping[str, Container[int]]] = {
        "block_m": POWERS[4:8],
        "programs": range(1, 1 << 31),
        "warps": POWERS[:5],
        "stages": range(1, 17),
        "span": POWERS[:3],
        **dict.fromkeys(("values", "columns"), POWERS[4:9]),
        "batch": POWERS[:9],
    }

    def pipeline(self, programs: int) -> tuple[int, int]:
        """Steps taken together, and loads in flight, where that many programs run."""
        span = self.span if programs <= PROCESSORS else 1
        return span, self.stages if span == 1 else self.stages // span + 1

    def spreads(self, group: int, leaves: int) -> bool:
        """Whether `leaves` leaves in all, of `group` rows each, are spread.

        Measured on an H200 with D = 128: at 32 leaves it is a tenth faster, at 128 slower.
        """
        return self.spread and group <= self.block_m and leaves <= PROCESSORS // 4

    def splits(self, tiles: int, leaves: int) -> int:
        """Programs that share the leaves of each of `tiles` tiles: no more than run at a time, for
        the last ones would run alone."""
        return max(1, min(self.programs // tiles, leaves))


def default(key: ScheduleKey, bucket: int) -> AttentionSchedule:
    """A decent schedule: a pure function of head sizes and the bucket of rows.

    Few rows: the time is that of reading K and V, so tiles are as small as the tensor core takes
    and programs many. Many rows: tiles of 64 rows, so that two programs fit on a processor.

    Args:
        key: of the contract.
        bucket: indexes BUCKETS; len(BUCKETS) is what lies beyond.
    """
    if key.device == PORTABLE:  # one kernel, whose tiles follow from the rows
        return AttentionSchedule(block_m=16)
    rows = BUCKETS[bucket] if bucket < len(BUCKETS) else 2 * BUCKETS[-1]
    if rows <= 16:
        return _fitting(key, AttentionSchedule(block_m=16, decode=DecodeSchedule()))
    if rows <= 32:
        return _fitting(key, AttentionSchedule(block_m=32, decode=DecodeSchedule()))
    return _fitting(
        key, AttentionSchedule(block_m=64, warps=8, stages=2, prefill=PrefillSchedule())
    )


def candidates(key: ScheduleKey, bucket: int) -> tuple[AttentionSchedule, ...]:
    """Schedules that a tuner should time for a bucket of rows: all have the same bits."""
    rows = BUCKETS[bucket] if bucket < len(BUCKETS) else 2 * BUCKETS[-1]
    if rows <= 32:
        tiles = [(16 if rows <= 16 else 32, warps, stages) for warps in (2, 4, 8)
                 for stages in (3, 4, 6)]  # fmt: skip
    else:
        tiles = [(64, 4, 2), (64, 4, 3), (64, 8, 2), (128, 8, 2), (128, 8, 3)]
    special = (None,) if rows <= 32 else (None, PrefillSchedule(), PrefillSchedule(cluster=2))
    found = {
        _fitting(key, AttentionSchedule(
            block_m=block_m, warps=warps, stages=stages, programs=programs, prefill=prefill
        ))
        for block_m, warps, stages in tiles
        for programs in (128, 256, 512, 2048)
        for prefill in special
    }  # fmt: skip
    return tuple(sorted(found, key=repr))


def _fitting(key: ScheduleKey, schedule: AttentionSchedule) -> AttentionSchedule:
    """`schedule` with no more stages than shared memory holds."""
    d, dv = (1 << ((size or 128) - 1).bit_length() for size in (key.head_dim, key.value_dim))
    fixed = 2 * schedule.block_m * d
    stages = max(1, min(schedule.stages, (SHARED - fixed) // (2 * 64 * (d + dv))))
    return replace(schedule, stages=stages)
