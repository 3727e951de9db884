"""The look-up: pure, by key and bucket, from the plan in force or the analytical default."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_family import BUCKETS, Own, Vendor, default
from hypothesis import given
from hypothesis import strategies as st

from samebits import plan as front
from samebits.contract import ContractKey
from samebits.engines.schedule import ScheduleKey
from samebits.errors import ContractError, PlanError
from samebits.plan import planner, tables
from samebits.plan import stack as stacks
from samebits.plan.document import Choice, Entry, Plan
from samebits.plan.keys import contract_at, family_of, schedule_key
from samebits.plan.planner import Row, row_for
from samebits.plan.stack import Stack

pytestmark = pytest.mark.usefixtures("fake")
KEY = ContractKey("linear", "bf16", "bf16", "sm_90", n=4096, k=4096)


def plan_of(key: ScheduleKey, made_on: Stack, *schedules: Choice) -> Plan:
    choices = tuple(schedules[i % len(schedules)] for i in range(len(BUCKETS) + 1))
    return Plan.of([Entry(key=key, contract=contract_at(key).text, choices=choices)], made_on)


def test_a_schedule_key_has_no_place_for_a_batch() -> None:
    assert ScheduleKey.__struct_fields__ == (
        "op", "device", "dtype", "out_dtype", "tree", "scaling", "n", "k", "head_dim", "value_dim",
        "kv_dtype",
        "group", "experts",
    )  # fmt: skip


def test_a_part_of_a_weight_has_the_whole_weight_s_tree_and_its_own_size() -> None:
    whole = ContractKey("linear", "bf16", "bf16", "sm_90", n=6144, k=4096)
    key = schedule_key(whole, n=768)
    assert (key.tree, key.n, key.k) == ("chain", 768, 4096)
    alone = schedule_key(ContractKey("linear", "bf16", "bf16", "sm_90", n=768, k=4096))
    assert (alone.tree, alone.n, alone.k) == ("split(4)", 768, 4096)
    assert contract_at(key).text != contract_at(alone).text


@given(
    op=st.sampled_from(["linear", "mm", "addmm", "matmul"]),
    dtype=st.sampled_from(["bf16", "fp16", "e4m3"]),
    n=st.integers(1, 1 << 16), k=st.integers(1, 1 << 15),
    scaling=st.sampled_from([None, "row", "block", "none"]),
)  # fmt: skip
def test_a_schedule_key_gives_its_contract_back(
    op: str, dtype: str, n: int, k: int, scaling: str | None
) -> None:
    from samebits.plan.contracts import contract_for

    key = ContractKey(
        op, dtype, "bf16", "sm_90", n=n, k=k, scaling=scaling if dtype == "e4m3" else None
    )
    assert contract_at(schedule_key(key)) == contract_for(key)


def test_every_matrix_product_shares_the_schedules_of_linear() -> None:
    keys = {schedule_key(ContractKey(op, "bf16", "bf16", "sm_90", n=64, k=64))
            for op in ("linear", "mm", "addmm", "einsum")}  # fmt: skip
    assert len(keys) == 1
    assert family_of("scaled_dot_product_attention") == "attention"
    assert family_of("softmax") == "softmax"


def test_unknown_shapes_get_the_default() -> None:
    row = row_for(KEY)
    assert row.schedules == tuple(default(row.key, b) for b in range(len(BUCKETS) + 1))
    assert row.own == row.general == row.schedules


@given(m=st.integers(1, 20000))
def test_the_bucket_is_the_smallest_that_holds_m(m: int) -> None:
    row = Row(schedule_key(KEY), tuple(Own(tile=i) for i in range(len(BUCKETS) + 1)), (), ())
    tile = row.at(m).tile  # type: ignore[attr-defined]
    assert tile == len(BUCKETS) or m <= BUCKETS[tile]
    assert tile == 0 or m > BUCKETS[tile - 1]


def test_looking_up_sees_no_clock_and_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    row_for(KEY)  # imports the family

    def explode(*_: Any, **__: Any) -> Any:
        raise AssertionError("a look-up is pure")

    for name in ("time", "monotonic", "perf_counter", "time_ns", "perf_counter_ns"):
        monkeypatch.setattr(time, name, explode)
    monkeypatch.setattr(os, "getenv", explode)
    monkeypatch.setattr(type(os.environ), "__getitem__", explode)
    monkeypatch.setattr(type(os.environ), "get", explode)
    planner.forget()
    found = [row_for(KEY).at(m) for m in (1, 7, 64, 513, 100000)]
    planner.forget()
    assert [row_for(KEY).at(m) for m in (100000, 513, 64, 7, 1)] == found[::-1]


def test_a_loaded_plan_comes_first_and_goes_again(stack: Stack) -> None:
    key = schedule_key(KEY)
    before = row_for(KEY)
    planner.put_in_force(plan_of(key, stack, Choice(schedule=Own(tile=77))))
    assert row_for(KEY).at(5) == Own(tile=77)
    other = ContractKey("linear", "bf16", "bf16", "sm_90", n=8192, k=4096)
    assert row_for(other).at(5) == default(row_for(other).key, 3)
    assert front.current("sm_90").entries[0].key == key
    front.reset()
    assert row_for(KEY) == before


def test_vendor_algorithms_need_their_library(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = schedule_key(KEY)
    choices = (
        Choice(schedule=Vendor(algorithm=66), own=Own(tile=5)),
        Choice(schedule=Vendor(algorithm=67)),
        Choice(schedule=Own(tile=9)),
    )
    planner.put_in_force(plan_of(key, stack, *choices))
    monkeypatch.setattr(tables, "cublaslt", lambda: stack.cublaslt)
    row = row_for(KEY)
    assert row.schedules[:3] == (Vendor(algorithm=66), Vendor(algorithm=67), Own(tile=9))
    assert row.own[:3] == (Own(tile=5), default(key, 1), Own(tile=9))
    assert row.own_at(1) == Own(tile=5)
    monkeypatch.setattr(tables, "cublaslt", lambda: "99.0.0")
    planner.forget()
    assert row_for(KEY).schedules == row.own


def test_fp16_runs_as_bf16_where_only_that_was_measured(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = Choice(schedule=Vendor(algorithm=66), own=Own(tile=5))
    planner.put_in_force(plan_of(schedule_key(KEY), stack, choice))
    monkeypatch.setattr(tables, "cublaslt", lambda: stack.cublaslt)
    half = ContractKey("linear", "fp16", "fp16", "sm_90", n=4096, k=4096)
    assert row_for(half).schedules == row_for(half).own == row_for(KEY).own
    wide = ContractKey("linear", "fp16", "fp32", "sm_90", n=4096, k=4096)
    assert row_for(wide).at(1) == default(row_for(wide).key, 0)


def test_committed_tables_are_in_force_without_asking(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sm_90").mkdir()
    made = plan_of(schedule_key(KEY), stack, Choice(schedule=Own(tile=3)))
    made.save(tmp_path / "sm_90" / "linear.json")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    tables.committed.cache_clear()
    planner.forget()
    assert row_for(KEY).at(1) == Own(tile=3)
    assert front.current("sm_90").id == made.id
    assert front.current("cpu").entries == ()


def test_what_has_no_kernels_is_refused() -> None:
    with pytest.raises(ContractError, match="no schedules"):
        row_for(ContractKey("softmax", "bf16", "bf16", "cpu"))


# ---- loading -----------------------------------------------------------------------------------


@pytest.fixture
def file(stack: Stack, tmp_path: Path) -> Path:
    plan_of(schedule_key(KEY), stack, Choice(schedule=Own(tile=3))).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def on(monkeypatch: pytest.MonkeyPatch, made_on: Stack) -> None:
    """This process runs on that stack."""
    monkeypatch.setattr(stacks, "here", lambda device: made_on)
    monkeypatch.setattr(
        stacks, "gpu_of", lambda device: 0 if device == made_on.device_class else None
    )


def test_a_plan_loads_on_its_own_stack(
    file: Path, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, stack)
    plan = front.load(file)
    assert row_for(KEY).at(1) == Own(tile=3)
    front.save(file.with_name("copy.json"), "sm_90")
    assert file.with_name("copy.json").read_bytes() == file.read_bytes()
    assert plan.id == front.current("sm_90").id


def test_a_plan_for_another_device_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, Stack(device_class="cpu"))
    for verify in (False, True):
        with pytest.raises(PlanError, match="no such device"):
            front.load(file, verify=verify)
    assert not planner.loaded()


@pytest.mark.parametrize("library", ["torch", "triton", "cublaslt"])
def test_a_plan_of_other_libraries_is_refused(
    file: Path, stack: Stack, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, msgspec.structs.replace(stack, **{library: "9.9"}))
    with pytest.raises(PlanError, match=rf"{library} .*here 9\.9.*verify=True"):
        front.load(file)
    assert not planner.loaded()


def test_a_driver_or_another_card_of_the_class_does_not_matter(
    file: Path, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, msgspec.structs.replace(stack, driver="1", device="H100", sms=114))
    assert front.load(file).stack == stack


def test_the_id_of_this_machine_s_plan_is_at_the_door() -> None:
    assert front.id == front.current().id
    with pytest.raises(AttributeError):
        front.nothing  # noqa: B018
