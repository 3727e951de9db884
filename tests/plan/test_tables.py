"""The committed tables: whole, canonical, of one stack, and usable without the vendor's library."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from samebits.contract import ContractKey
from samebits.engines.schedule import BUCKETS
from samebits.engines.triton.linear.schedule import SHARED, GemmSchedule
from samebits.plan import document, planner, tables
from samebits.plan import stack as stacks
from samebits.plan.builder import build, keys_of
from samebits.plan.families import default_at
from samebits.plan.planner import row_for

ROOT = Path(str(tables.ROOT))
FILES = sorted(ROOT.rglob("*.json"))


def test_there_are_tables() -> None:
    assert [file.parent.name for file in FILES] == ["sm_90"] * len(FILES) and FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_table_is_canonical_and_measured(file: Path) -> None:
    plan = document.read(file)
    assert document.write(plan) == file.read_bytes()
    assert plan.tuned and plan.stack.device_class == file.parent.name and plan.stack.device
    for entry in plan.entries:
        struck = {s.schedule for s in entry.struck}
        for choice in entry.choices:
            assert choice.us is not None and choice.us > 0
            assert not {choice.schedule, choice.runner_up, choice.own} & struck
            assert not choice.schedule.library or choice.own is not None


def test_the_tables_make_one_plan() -> None:
    plan = tables.committed("sm_90")
    assert len(plan.entries) == sum(len(document.read(file).entries) for file in FILES)


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-8b"])
def test_the_products_of_these_models_are_tuned(model: str) -> None:
    known = {entry.key for entry in tables.committed("sm_90").entries}
    products = [k for k in keys_of(model, device="sm_90") if k.op == "linear"]
    assert [key for key in products if key not in known] == []


@pytest.mark.parametrize("library", ["the table's", "another"])
def test_a_vendor_s_algorithm_runs_with_its_own_library_alone(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tables.committed("sm_90")
    version = plan.stack.cublaslt if library == "the table's" else "99.0.0"
    monkeypatch.setattr(tables, "cublaslt", lambda: version)
    planner.back_to_tables()
    row = row_for(ContractKey("linear", "bf16", "bf16", "sm_90", n=6144, k=4096))
    planner.back_to_tables()
    assert not any(schedule.library for schedule in row.own)
    vendors = any(schedule.library for schedule in row.schedules)
    assert vendors == (library == "the table's")


def test_a_plan_that_is_built_elsewhere_has_neither_the_times_nor_the_vendor_s_algorithms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = tables.committed("sm_90")
    key = ContractKey("linear", "bf16", "bf16", "sm_90", n=6144, k=4096)
    for version in ("99.0.0", table.stack.cublaslt):
        here = replace(table.stack, device="another", cublaslt=version)
        monkeypatch.setattr(stacks, "here", lambda device, here=here: here)
        monkeypatch.setattr(tables, "cublaslt", lambda version=version: version)
        planner.back_to_tables()
        (entry,) = build([(6144, 4096)], device="sm_90").entries
        row = row_for(key)
        assert tuple(choice.schedule for choice in entry.choices) == row.schedules
        assert any(s.library for s in row.schedules) == (version == table.stack.cublaslt)
        assert not entry.stock_us and all(choice.us is None for choice in entry.choices)
    planner.back_to_tables()
    driver = replace(table.stack, driver="999.9")
    monkeypatch.setattr(stacks, "here", lambda device: driver)
    assert build([(6144, 4096)], device="sm_90").entries[0] in table.entries


def test_a_rank_s_part_of_few_rows_has_a_block_a_leaf() -> None:
    """By default, as by the table; and two of them fit on a processor."""
    entries = {entry.key: entry for entry in tables.committed("sm_90").entries}
    parts = [
        key for key in keys_of("qwen3-8b", device="sm_90", tp=[1, 2])
        if key.op == "linear" and key.tree in ("balanced(4)", "balanced(8)")
    ]  # fmt: skip
    assert len(parts) == 4
    for key in parts:
        for bucket in range(BUCKETS.index(32) + 1):
            for s in (default_at(key, bucket), entries[key].choices[bucket].schedule):
                assert isinstance(s, GemmSchedule) and s.split
                assert 2 * s.stages * (s.block_m + s.block_n) * s.block_k * 2 <= SHARED
