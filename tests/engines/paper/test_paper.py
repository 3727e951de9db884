"""The accelerator on paper: a plan for it, and its bits whatever arrives when."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from samebits import plan
from samebits.contract import AttentionContract, LinearContract, Split
from samebits.engines.paper import simulate
from samebits.engines.paper.machine import machine
from samebits.engines.paper.schedule import (
    PaperSchedule,
    candidates,
    default,
    modelled_ns,
    refusal,
    tree_of,
)
from samebits.engines.schedule import BUCKETS, ScheduleKey
from samebits.errors import ContractError
from samebits.plan import contract_of
from samebits.plan.builder import keys_of
from samebits.plan.document import read

SHAPES = ((512, 8192), (4096, 4096), (14336, 4096), (64, 300))


def product() -> tuple[LinearContract, torch.Tensor, torch.Tensor]:
    contract = contract_of("linear", n=64, k=4096, dtype="bf16", device="paper")
    g = torch.Generator().manual_seed(3)
    x, w = (torch.randn(r, 4096, generator=g).bfloat16() for r in (2, 64))
    return contract, x, w


def test_only_the_ordered_mode_keeps_what_several_cores_add() -> None:
    contract, x, w = product()
    assert isinstance(contract.tree, Split)
    right = contract.evaluate(x, w)
    assert isinstance(right, torch.Tensor)
    parts = contract.tree.parts
    found: dict[str, set[bytes]] = {"free": set(), "ordered": set()}
    for arrival in itertools.islice(itertools.permutations(range(parts)), 24):
        for mode, results in found.items():
            schedule = PaperSchedule(mode=mode, parts=parts)
            results.add(simulate.linear(contract, schedule, x, w, arrival).tobytes())
    assert found["ordered"] == {right.numpy().tobytes()}
    assert len(found["free"]) > 1
    for mode in found:
        alone = simulate.linear(contract, PaperSchedule(mode=mode), x, w)
        assert alone.tobytes() == right.numpy().tobytes()


def test_only_a_locked_map_keeps_the_leaves_of_attention() -> None:
    contract = contract_of("attention", dtype="bf16", head_dim=32, device="paper")
    assert isinstance(contract, AttentionContract)
    g = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(t, 32, generator=g).bfloat16() for t in (1, 2000, 2000))
    right = contract.evaluate(q, k, v)
    assert isinstance(right, torch.Tensor)
    found: dict[str, set[bytes]] = {"free": set(), "ordered": set()}
    for idle in (1, 3, 8):
        for mode, results in found.items():
            schedule = PaperSchedule(mode=mode, parts=8)
            y = simulate.attention(contract, schedule, q, k, v, idle)
            assert isinstance(y, torch.Tensor)
            results.add(y.numpy().tobytes())
    assert found["ordered"] == {right.numpy().tobytes()}
    assert len(found["free"]) == 3


def test_what_does_not_keep_the_bits_is_never_chosen() -> None:
    free = PaperSchedule(mode="free", parts=8)
    assert refusal(free) == "in the mode 'free' partial results are added as partial results arrive"
    for key in keys_of("qwen3-8b", device="paper"):
        if key.op not in ("linear", "attention"):
            continue
        for bucket in range(len(BUCKETS) + 1):
            chosen = default(key, bucket)
            assert chosen in candidates(key, bucket) and refusal(chosen) is None


def test_the_plan_changes_modes_with_the_rows() -> None:
    """Few rows: leaves on several cores, ordered. Many: one core a tile, and the faster mode."""
    key = next(iter(keys_of([(512, 8192)], device="paper")))
    modes = [default(key, bucket).mode for bucket in range(len(BUCKETS) + 1)]
    assert modes[0] == "ordered" and modes[-1] == "free"
    assert modes == sorted(modes, reverse=True)  # one change, from "ordered" to "free"
    first = BUCKETS[0]
    times = {s: modelled_ns(key, first, s) for s in candidates(key, 0)}
    kept = {s: t for s, t in times.items() if refusal(s) is None}
    assert min(kept, key=kept.__getitem__) == default(key, 0)
    assert min(times.values()) <= min(kept.values())  # what order costs


def test_a_tree_is_a_function_of_the_weight() -> None:
    assert str(tree_of(14336, 4096)) == "chain"  # its tiles fill the cores
    assert str(tree_of(64, 300)) == "chain"  # too short to share
    assert isinstance(tree_of(512, 8192), Split)


def test_a_plan_is_made_kept_and_read(tmp_path: Path) -> None:
    made = plan.build(SHAPES, device="paper")
    again = plan.build(SHAPES, device="ordered-accelerator")
    assert made.id == again.id and made.schedules_id == again.schedules_id
    path = tmp_path / "paper.json"
    made.save(path)
    assert read(path) == made
    kinds = {type(c.schedule) for e in made.entries for c in e.choices}
    assert kinds == {PaperSchedule}


def test_what_the_machine_is_asked_for_and_cannot_do() -> None:
    contract, x, w = product()
    with pytest.raises(ContractError, match="does not share the"):
        simulate.linear(contract, PaperSchedule(mode="ordered", parts=3), x, w)
    parts = contract.tree.parts  # type: ignore[union-attr]
    with pytest.raises(ContractError, match="arrive each once"):
        simulate.linear(contract, PaperSchedule(mode="ordered", parts=parts), x, w, [0] * parts)
    with pytest.raises(ContractError, match="no arithmetic of paper for fp32"):
        contract_of("linear", n=8, k=8, dtype="fp32", device="paper")


def test_order_is_never_free() -> None:
    key = ScheduleKey(op="linear", device="paper", dtype="bf16", out_dtype="bf16", tree="split(8)",
                      n=512, k=8192)  # fmt: skip
    for m in BUCKETS:
        for parts in (1, 8):
            free, ordered = (
                modelled_ns(key, m, PaperSchedule(mode=mode, parts=parts))
                for mode in ("free", "ordered")
            )
            assert machine().launch_ns < free < ordered
    assert set(machine().modes) == {"free", "ordered"}
