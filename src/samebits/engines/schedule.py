"""Schedules as data: everything that changes speed, and nothing that changes bits.

A family of kernels (linear, grouped, attention, ...) defines its own frozen schedule. The tag makes
a schedule self-describing in a plan file.
"""

from __future__ import annotations

import msgspec

#: The largest M of each bucket of rows; the last bucket has no end.
BUCKETS: tuple[int, ...] = (
    1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192,
)  # fmt: skip


class Schedule(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all schedules. Subclasses name themselves: ``class S(Schedule, tag="triton.gemm")``.

    A schedule holds tile sizes, warps, stages, operand order, the kernel that runs: never a leaf
    length, a number format or another part of a contract.
    """
