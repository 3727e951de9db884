"""Schedules of attention: what they hold, the ones to try, and the analytical default."""

from __future__ import annotations

from samebits.engines.schedule import Schedule


class AttentionSchedule(Schedule, tag="triton.attention", frozen=True, kw_only=True):
    """How an attention runs. Leaves, steps and arithmetic are the contract's, not here.

    Attributes:
        block_m: rows (positions times query heads of a KV head) in a tile, a power of two from 16.
        splits: programs that share the leaves of a tile; 1 folds them as they come, more write
            them to a workspace for a second kernel.
        num_warps, num_stages: of the first kernel.
        columns: values that a program of the fold takes.
        batch: leaves that it has in flight.
        pdl: the fold is launched while the first kernel runs.
    """

    block_m: int
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 2
    columns: int = 32
    batch: int = 16
    pdl: bool = True
