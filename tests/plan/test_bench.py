"""The tuner's operands: bits are compared on numbers that show another tree. No GPU is needed."""

from __future__ import annotations

import msgspec
import pytest
import torch

import interpreter
from samebits import bits
from samebits.contract import ContractKey, LinearContract
from samebits.engines.schedule import Schedule
from samebits.engines.triton.linear.schedule import default
from samebits.errors import PlanError
from samebits.plan.builder import keys_of
from samebits.plan.contracts import contract_of
from samebits.plan.keys import contract_at, schedule_key
from samebits.plan.tune import Unsuitable, gpu, grouped, linear
from samebits.plan.tune.gpu import Pools
from samebits.plan.tune.grouped import GroupedBench
from samebits.plan.tune.linear import LinearBench

DEVICE = torch.device("cpu" if interpreter.INTERPRETED else "cuda")
(KEY,) = keys_of([(48, 320)], device="sm_90")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> LinearBench:
    monkeypatch.setattr(linear, "BUCKETS", (1, 16, 40))
    monkeypatch.setattr(linear.vendor, "candidates", lambda *_, **__: [])
    return LinearBench(KEY, Pools(DEVICE, torch.bfloat16))


def test_cancelling_operands_leave_little_more_than_rounding_errors() -> None:
    x, w = (
        Pools(torch.device("cpu"), torch.bfloat16).numbers(n * 1024)[: n * 1024] for n in (64, 32)
    )
    x, w = gpu.cancelling(x.view(64, 1024)), gpu.doubled(w.view(32, 1024))
    exact = x.double() @ w.double().t()
    size = x.double().abs() @ w.double().abs().t()
    assert (exact.abs() / size).median() < 2**-8
    results = []
    for tree in ("chain", "split(4)", "segment(512)", "balanced(8)"):
        contract = contract_of("linear", n=32, k=1024, dtype="bf16", device="sm_90", tree=tree)
        results.append(contract.evaluate(x, w, out_dtype=torch.bfloat16))
    for i, a in enumerate(results):
        for b in results[i + 1 :]:
            assert bits.count_different(a, b) > 64 * 32 / 20


def test_every_own_schedule_has_the_reference_s_bits(bench: LinearBench) -> None:
    for bucket, m in enumerate((1, 16, 40)):
        for schedule in list(bench.candidates(bucket))[:4]:
            assert bench.difference(schedule, m) is None


def test_another_tree_is_told(bench: LinearBench, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = contract_at(msgspec.structs.replace(KEY, tree="segment(64)"))
    run = linear.run_linear
    monkeypatch.setattr(linear, "run_linear", lambda contract, *rest: run(wrong, *rest))
    for bucket, m in enumerate((1, 16, 40)):
        why = bench.difference(default(KEY, bucket), m)
        assert why is not None
        assert f"elements differ at M = {m}, the first at row" in why


def test_a_wrong_reference_is_told(bench: LinearBench) -> None:
    gpu.words(bench.reference)[3, 5] ^= 1
    with pytest.raises(PlanError, match="reference is wrong at row 3, column 5"):
        bench.difference(default(KEY, 1), 16)


def test_unwritten_results_are_told(bench: LinearBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "run_linear", lambda *_: None)
    why = bench.difference(default(KEY, 0), 1)
    assert why is not None and "48 of 48 elements differ" in why


def test_what_fails_is_unsuitable(bench: LinearBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of shared memory")

    monkeypatch.setattr(linear, "run_linear", fail)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with pytest.raises(Unsuitable, match="RuntimeError: out of shared memory"):
        bench.difference(default(KEY, 0), 1)


def test_no_reference_without_the_evaluator_s_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(contract: LinearContract, schedule: Schedule, *operands: torch.Tensor) -> None:
        operands[2].zero_()

    monkeypatch.setattr(linear, "BUCKETS", (1, 16, 40))
    monkeypatch.setattr(linear.vendor, "candidates", lambda *_, **__: [])
    monkeypatch.setattr(linear, "run_linear", other)
    with pytest.raises(PlanError, match="no schedule has the bits of the evaluator"):
        LinearBench(KEY, Pools(DEVICE, torch.bfloat16))


# ---- grouped products --------------------------------------------------------------------------


@pytest.fixture
def experts(monkeypatch: pytest.MonkeyPatch) -> GroupedBench:
    monkeypatch.setattr(grouped, "BUCKETS", (1, 16, 40))
    key = schedule_key(
        ContractKey("grouped_linear", "bf16", "bf16", "sm_90", n=48, k=128), experts=3
    )
    return GroupedBench(key, Pools(DEVICE, torch.bfloat16))


def test_grouped_schedules_have_one_result(experts: GroupedBench) -> None:
    for bucket, m in enumerate((1, 16, 40)):
        plain = [s for s in experts.candidates(bucket) if not s.persistent]  # type: ignore[attr-defined]
        for schedule in plain[:3]:
            assert experts.difference(schedule, m) is None


def test_another_grouped_tree_is_told(
    experts: GroupedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = experts.candidates(0)[0]
    assert experts.difference(schedule, 40) is None
    wrong = contract_at(msgspec.structs.replace(KEY, tree="segment(32)", k=128))
    run = grouped.grouped_linear
    monkeypatch.setattr(grouped, "grouped_linear", lambda _, *a, **k: run(wrong, *a, **k))
    why = experts.difference(schedule, 40)
    assert why is not None and "elements differ at M = 40" in why
    experts.references.clear()
    with pytest.raises(PlanError, match="has not the bits of the evaluator"):
        experts.difference(schedule, 40)
