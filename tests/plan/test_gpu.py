"""The tuner and the verification on a real GPU, on small weights."""

from __future__ import annotations

import msgspec
import pytest
import torch

from samebits.contract import LinearContract
from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.plan import stack as stacks
from samebits.plan.builder import keys_of
from samebits.plan.document import Plan
from samebits.plan.families import candidates_at
from samebits.plan.keys import contract_at
from samebits.plan.tune import Effort, tune
from samebits.plan.tune.benches import benches
from samebits.plan.tune.search import Unsuitable
from samebits.plan.verify import verify

pytestmark = pytest.mark.skipif(stacks.gpu_of("sm_90") is None, reason="needs an sm_90 GPU")
KEYS = keys_of([(256, 512), (128, 2048)], device="sm_90")
EFFORT = Effort(candidates=4, rounds=1)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path = tmp_path_factory.mktemp("plan") / "small.json"
    found = tune(KEYS, benches("sm_90"), stacks.here("sm_90"), path, effort=EFFORT, stock=KEYS)
    assert (found.failed, found.struck) == ({}, [])
    return found.plan


def test_every_schedule_of_a_tuned_plan_has_the_bits_of_its_contract(plan: Plan) -> None:
    assert {entry.key for entry in plan.entries} == set(KEYS)
    assert all(choice.us and choice.us > 0 for e in plan.entries for choice in e.choices)
    assert all(verdict.holds for verdict in verify(plan))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_another_tree_is_noticed_in_every_bucket(
    plan: Plan, key: ScheduleKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    from samebits.plan.tune import linear

    (entry,) = [e for e in plan.entries if e.key == key]
    other = msgspec.structs.replace(key, tree="segment(128)")
    run = linear.run_linear

    def run_other(
        _: LinearContract, schedule: Schedule, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor
    ) -> None:
        try:
            run(contract_at(other), schedule, x, w, y)
        except Unsuitable:  # it cannot be made to take another tree
            run(contract_at(other), next(iter(candidates_at(other, 0))), x, w, y)

    with benches("sm_90")(key) as bench:
        monkeypatch.setattr(linear, "run_linear", run_other)
        for m, choice in zip(BUCKETS, entry.choices, strict=False):
            why = bench.difference(choice.own or choice.schedule, m)
            assert why is not None and "elements differ" in why
