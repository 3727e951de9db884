"""Schedules as data: everything that changes speed, and nothing that changes bits.

A family of kernels (linear, grouped, attention, ...) defines its own frozen schedule. The tag makes
a schedule self-describing in a plan file.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import ClassVar

import msgspec

#: Powers of two, for `Schedule.allowed`.
POWERS: tuple[int, ...] = tuple(1 << i for i in range(13))
#: The largest M of each bucket of rows; the last bucket has no end.
BUCKETS: tuple[int, ...] = (
    1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192,
)  # fmt: skip


class Schedule(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True,
    forbid_unknown_fields=True,
):  # fmt: skip
    """Base of all schedules. Subclasses name themselves: ``class S(Schedule, tag="triton.gemm")``.

    A schedule holds tile sizes, warps, stages, operand order, the kernel that runs: never a leaf
    length, a number format or another part of a contract. Fields with their default are not
    written: a new one with a default leaves old plans as they are.

    Attributes:
        library: the vendor's library whose algorithm it names ("cublaslt"), else "". Such a
            schedule means nothing to another version of the library.
        allowed: what integer fields may be, by name. Kernels rely on it, and a plan file can say
            anything.

    Raises:
        ValueError: a field has another value.
    """

    library: ClassVar[str] = ""
    allowed: ClassVar[Mapping[str, Container[int]]] = {}

    def __post_init__(self) -> None:
        for name, values in self.allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} is {getattr(self, name)}, not one of {values}")


class ScheduleKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that the choice of a row of schedules can see. A test pins these field names.

    Like a contract's key it has no number of rows: those pick a bucket of the row. Unlike it, sizes
    are those of the operands at hand: a tensor-parallel rank's part of a weight has the tree of the
    whole weight and the schedule of its own size.

    Attributes:
        op: the family: "linear" for every matrix product, "grouped", "attention", "rms_norm", ...
        device: device class, e.g. "sm_90".
        dtype: storage type of the operands.
        out_dtype: storage type of the result.
        tree: text of the contract's tree, e.g. "split(4)".
        scaling: of a `LinearContract`.
        n: output features of the weight at hand.
        k: length of the reduction axis at hand.
        head_dim: D of q and k.
        value_dim: Dv of v.
        kv_dtype: storage type of k and v, where it is not `dtype`.
        group: query heads that share one KV head.
        experts: expert weights at hand.
    """

    op: str
    device: str
    dtype: str
    out_dtype: str
    tree: str = ""
    scaling: str = "none"
    n: int | None = None
    k: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    kv_dtype: str | None = None
    group: int | None = None
    experts: int | None = None

    def __str__(self) -> str:
        shape = [
            f"{self.n} x {self.k}" if self.n is not None else "",
            f"D {self.head_dim}" if self.head_dim is not None else "",
            f"group {self.group}" if self.group is not None else "",
            f"{self.experts} experts" if self.experts is not None else "",
        ]
        parts = self.op, *shape, self.operands, self.tree, self.device
        return " ".join(part for part in parts if part)

    @property
    def operands(self) -> str:
        """Storage types in words: of the operands, and of the result where it has another one."""
        return self.dtype if self.dtype == self.out_dtype else f"{self.dtype} to {self.out_dtype}"
