"""Verification, comparison of plans, and plans of models."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from fake_family import BUCKETS, Absent, Broken, Crooked, FakeBench, FakeDevice, Own, Vendor

from samebits import plan as front
from samebits.engines.schedule import Schedule, ScheduleKey
from samebits.errors import ContractError, PlanError
from samebits.plan import stack as stacks
from samebits.plan import verify as checks
from samebits.plan.builder import build, keys_of
from samebits.plan.diff import diff
from samebits.plan.document import Choice, Entry, Plan
from samebits.plan.keys import contract_at
from samebits.plan.models import MODELS, TP_SIZES, Weight, cuts, model_of
from samebits.plan.stack import Stack
from samebits.plan.verify import verify

pytestmark = pytest.mark.usefixtures("fake")


def plan_of(keys: list[ScheduleKey], stack: Stack, *schedules: Schedule) -> Plan:
    choices = tuple(
        Choice(schedule=schedules[i % len(schedules)], runner_up=Own(tile=1), own=Own(tile=2))
        for i in range(len(BUCKETS) + 1)
    )
    return Plan.of(
        [Entry(key=key, contract=contract_at(key).text, choices=choices) for key in keys], stack
    )


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice(lambda key: FakeBench(lambda s, m: 1.0, []))


def test_every_schedule_is_compared_at_the_edges_of_its_buckets(
    keys: list[ScheduleKey], stack: Stack
) -> None:
    benches: list[FakeBench] = []

    def make(key: ScheduleKey) -> FakeBench:
        benches.append(FakeBench(lambda s, m: 1.0, []))
        return benches[-1]

    verdicts = list(verify(plan_of(keys, stack, Own(tile=8)), FakeDevice(make)))
    assert [v.holds for v in verdicts] == [True] * len(keys)
    assert [v.compared for v in verdicts] == [3] * len(keys)
    rows = {m for s, m in benches[0].compared if s == Own(tile=8)}
    assert rows == set(BUCKETS) | {below + 1 for below in (0, *BUCKETS[:-1])}


def test_a_wrong_schedule_does_not_hold(
    keys: list[ScheduleKey], stack: Stack, device: FakeDevice
) -> None:
    (verdict,) = verify(plan_of(keys[:1], stack, Own(tile=8), Broken(from_m=200)), device)
    assert not verdict.holds
    assert [(s.schedule, s.m) for s in verdict.struck] == [(Broken(from_m=200), 256)]


def test_a_schedule_with_another_tree_does_not_hold(keys: list[ScheduleKey], stack: Stack) -> None:
    bench = FakeBench(lambda s, m: 1.0, [])
    (verdict,) = verify(
        plan_of(keys[:1], stack, Own(tile=8), Crooked()), FakeDevice(lambda key: bench)
    )
    assert not verdict.holds
    assert [(s.schedule, s.why) for s in verdict.struck] == [
        (Crooked(), "a chain, where the contract is split(4)")
    ]
    assert [s for s, _ in bench.probed].count(Own(tile=8)) == 1, "a tree is probed once"


def test_what_does_not_run_here_does_not_hold(
    keys: list[ScheduleKey], stack: Stack, device: FakeDevice
) -> None:
    (verdict,) = verify(plan_of(keys[:1], stack, Absent()), device)
    assert (verdict.holds, verdict.unsuitable) == (False, (Absent(),))


def test_no_device_is_said(keys: list[ScheduleKey], stack: Stack) -> None:
    if stacks.gpu_of("sm_90") is None:
        with pytest.raises(PlanError, match="this machine has none"):
            list(verify(plan_of(keys, stack, Own(tile=8))))


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Vendor(algorithm=66), ""),
        (Broken(), "3 schedules have other bits.*elements differs"),
        (Absent(), "3 keys could not be compared here, or do not run"),
    ],
    ids=["sound", "broken", "absent"],
)
def test_another_stack_loads_after_verification(
    keys: list[ScheduleKey], stack: Stack, device: FakeDevice, schedule: Schedule, words: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plan_of(keys, stack, schedule).save(tmp_path / "plan.json")
    here = msgspec.structs.replace(stack, torch="9.9")
    monkeypatch.setattr(stacks, "here", lambda device: here)
    monkeypatch.setattr(stacks, "gpu_of", lambda device: 0)
    monkeypatch.setattr(checks, "benches", lambda name: device)
    if words:
        with pytest.raises(PlanError, match=words):
            front.load(tmp_path / "plan.json", verify=True)
        return
    front.load(tmp_path / "plan.json", verify=True)
    assert device.opened == [entry.key for entry in front.current("sm_90").entries]


# ---- differences -------------------------------------------------------------------------------


def test_the_same_plan_has_no_difference(keys: list[ScheduleKey], stack: Stack) -> None:
    found = diff(plan_of(keys, stack, Own(tile=8)), plan_of(keys[::-1], stack, Own(tile=8)))
    assert (found.changes, found.stack, found.bits) == ((), (), False)


def test_another_schedule_is_speed(keys: list[ScheduleKey], stack: Stack) -> None:
    before, after = (
        plan_of(keys, stack, Own(tile=8)),
        plan_of(keys, stack, Own(tile=8), Own(tile=9)),
    )
    found = diff(before, after)
    assert not found.bits
    assert {change.kind for change in found.changes} == {"speed"}
    assert found.changes[0].buckets[0] == (BUCKETS[1], Own(tile=8), Own(tile=9))
    assert diff(before, plan_of(keys, msgspec.structs.replace(stack, torch="9"), Own(tile=8))) \
        .stack == ("torch 2.11.0 (here 9)",)  # fmt: skip


def test_another_tree_is_bits(keys: list[ScheduleKey], stack: Stack) -> None:
    other = [msgspec.structs.replace(keys[0], tree="segment(512)"), *keys[1:]]
    found = diff(plan_of(keys, stack, Own(tile=8)), plan_of(other, stack, Own(tile=8)))
    assert found.bits
    (change,) = found.changes
    assert (change.key, change.kind) == (other[0], "bits")
    assert change.contracts is not None and "segment(512)" in change.contracts[1]


def test_keys_that_come_and_go(keys: list[ScheduleKey], stack: Stack) -> None:
    a, b = plan_of(keys[:2], stack, Own(tile=8)), plan_of(keys[1:], stack, Own(tile=8))
    assert {(c.key, c.kind) for c in diff(a, b).changes} == {
        (keys[0], "removed"), (keys[2], "added"),
    }  # fmt: skip
    assert not diff(a, b).bits


# ---- models ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_rank_s_parts_make_up_the_weight(model: str) -> None:
    for tp in TP_SIZES:
        for weight, n, k in cuts(model_of(model).weights, [tp]):
            if weight.cut == "k":
                assert (n, k * tp) == (weight.n, weight.k)
            elif weight.shared:
                assert k == weight.k and weight.n <= n * tp <= weight.n + 2 * tp * weight.unit
            else:
                assert (n * tp, k) == (weight.n, weight.k)
            assert n % 8 == 0 and k % 8 == 0


def test_shared_heads_are_repeated_where_ranks_outnumber_them() -> None:
    qkv = Weight("qkv", (16 + 2 * 4) * 128, 1024, "n", unit=128, shared=8 * 128)
    assert [qkv.at(tp)[0] // 128 for tp in (1, 2, 4, 8, 16)] == [24, 12, 6, 4, 3]


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(PlanError, match="cannot be cut"):
        list(cuts([Weight("o", 64, 100, "k")], [8]))
    with pytest.raises(PlanError, match="is not known"):
        build("gpt-9", device="sm_90")


def test_parts_come_with_the_tree_of_the_whole_and_with_their_own() -> None:
    keys = keys_of("llama-3-8b", device="sm_90", tp=[8])
    assert {k.tree for k in keys if (k.n, k.k) == (768, 4096)} == {"chain", "split(4)"}
    assert {k.tree for k in keys if (k.n, k.k) == (4096, 512)} == {"chain"}


def test_row_parallel_parts_come_with_the_tree_that_ranks_share() -> None:
    """And one rank with the tree of several, where both are asked for."""
    several = {
        (4096, 4096, "balanced(8)", "bf16"), (4096, 14336, "balanced(8)", "bf16"),
        (4096, 2048, "balanced(4)", "fp32"), (4096, 7168, "balanced(4)", "fp32"),
    }  # fmt: skip

    def found(tp: list[int]) -> set[tuple[int | None, int | None, str, str]]:
        keys = keys_of("llama-3-8b", device="sm_90", tp=tp)
        return {(k.n, k.k, k.tree, k.out_dtype) for k in keys if k.tree.startswith("balanced")}

    assert found([1, 2]) == several and found([1]) == set()
    assert found([2]) == {key for key in several if key[2] == "balanced(4)"}


def test_building_again_gives_the_same_ids() -> None:
    for device in ("sm_90", "cpu"):
        a, b = (build("qwen3-0.6b", device=device, tp=[2, 1]) for _ in range(2))
        c = build("qwen3-0.6b", device=device, tp=(1, 2))
        assert a.id == b.id == c.id
        assert a.schedules_id == b.schedules_id == c.schedules_id
    assert build("qwen3-0.6b", device="h200").id == build("qwen3-0.6b", device="sm_90").id


def test_a_module_gives_its_linear_weights() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    assert build(module, device="sm_90").id == build([(32, 64), (8, 32)], device="sm_90").id
    with pytest.raises(PlanError, match="nothing to plan"):
        build(torch.nn.ReLU(), device="sm_90")


@pytest.mark.parametrize("shape", [(4,), (0, 8), (8, -1), (8, 8, 8), (8.0, 8)])
def test_shapes_that_are_none_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(PlanError, match="give \\(n, k\\)"):
        build([shape], device="sm_90")


def test_a_device_without_contracts_is_refused() -> None:
    with pytest.raises(ContractError, match="sm_70"):
        build([(8, 8)], device="sm_70")


def test_what_runs_beyond_the_largest_bucket_is_compared(
    keys: list[ScheduleKey], stack: Stack, device: FakeDevice
) -> None:
    (entry,) = plan_of(keys[:1], stack, Own(tile=8)).entries
    beyond = msgspec.structs.replace(
        entry, choices=(*entry.choices[:-1], Choice(schedule=Broken()))
    )
    (verdict,) = verify(Plan.of([beyond], stack), device)
    assert [(s.schedule, s.m) for s in verdict.struck] == [(Broken(), BUCKETS[-1])]


def test_plans_of_two_devices_are_not_compared(keys: list[ScheduleKey], stack: Stack) -> None:
    with pytest.raises(PlanError, match="a plan for sm_90 and one for cpu"):
        diff(plan_of(keys, stack, Own(tile=8)), build([(8, 8)], device="cpu"))
