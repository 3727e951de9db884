"""Schedules as a plan file can name them: what a kernel relies on is checked when one is read."""

from __future__ import annotations

from importlib import import_module

import msgspec
import pytest

from samebits.engines.schedule import Schedule
from samebits.plan.families import FAMILIES, schedule_kinds

for modules in FAMILIES.values():
    for module in modules:
        import_module(module)
KINDS = {
    tag: kind
    for tag, kind in schedule_kinds(FAMILIES).items()
    if kind.__module__.startswith("samebits.engines.") and tag not in ("Schedule", "paper")
}
#: Fields without a default, as they have to be.
NEEDED = {"block_m": 16, "block_n": 64, "block_k": 64, "version": 1, "algorithm": 66}


def made(kind: type[Schedule], **values: object) -> Schedule:
    needed = {f.name: NEEDED[f.name] for f in msgspec.structs.fields(kind) if f.required}
    raw = {"kind": str(kind.__struct_config__.tag), **needed, **values}
    return msgspec.convert(raw, kind)


@pytest.mark.parametrize("tag", sorted(KINDS))
def test_a_number_that_the_kernel_cannot_take_is_refused(tag: str) -> None:
    kind = KINDS[tag]
    integers = {f.name for f in msgspec.structs.fields(kind) if f.type is int}
    assert set(kind.allowed) == (set() if kind.library else integers)
    assert isinstance(made(kind), kind)
    for name in kind.allowed:
        for bad in (-1, 1 << 62):
            with pytest.raises(msgspec.ValidationError, match=f"{name} is {bad}, not one of"):
                made(kind, **{name: bad})


@pytest.mark.parametrize(
    ("tag", "name", "bad"),
    [
        ("triton.gemm", "block_k", 24), ("triton.gemm", "block_m", 8),
        ("triton.grouped", "num_warps", 3), ("triton.attention", "block_m", 48),
        ("cuda.linear", "columns", 100), ("cuda.linear", "groups", 3),
        ("cuda.fma", "thread_rows", 9), ("cuda.fma", "ahead", 2), ("cuda.few", "columns", 32),
        ("cuda.decode", "spread", 9), ("triton.rows", "rows", 3),
    ],
)  # fmt: skip
def test_sizes_between_those_that_work_are_refused(tag: str, name: str, bad: int) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"{name} is {bad}"):
        made(KINDS[tag], **{name: bad})
