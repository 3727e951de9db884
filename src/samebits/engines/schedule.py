"""Schedules as data: everything that changes speed, and nothing that changes bits.

A family of kernels (linear, grouped, attention, ...) defines its own frozen schedule. The tag makes
a schedule self-describing in a plan file.
"""

from __future__ import annotations

import msgspec


class Schedule(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all schedules. Subclasses name themselves: ``class S(Schedule, tag="triton.gemm")``.

    A schedule holds tile sizes, warps, stages, operand order, the kernel that runs: never a leaf
    length, a number format or another part of a contract.
    """
