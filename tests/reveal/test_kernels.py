"""The trees of our Triton kernels, probed: in the interpreter, which computes the chip's numbers,
or on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from interpreter import INTERPRETED
from samebits.contract import Balanced, Chain, ContractKey, LinearContract, Split, Tree, hopper_mma
from samebits.engines.schedule import ScheduleKey
from samebits.engines.triton.linear.run import run
from samebits.engines.triton.linear.schedule import GemmSchedule
from samebits.plan import checkers
from samebits.plan.checkers import AttentionChecker, RowChecker, checkable, checker_of
from samebits.plan.families import candidates_at, default_at
from samebits.plan.keys import schedule_key
from samebits.reveal import RevealedTree, reveal
from samebits.reveal.compare import difference
from samebits.reveal.operations import Request, operand_of

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
SCHEDULES = (
    GemmSchedule(block_m=16, block_n=64, block_k=128, swap=True),
    GemmSchedule(block_m=64, block_n=64, block_k=64, split=True),
)


def product(tree: Tree, schedule: GemmSchedule) -> Request:
    contract = LinearContract(tree, hopper_mma("bf16"), "bf16", "fp32", epilogue=("alpha", "bias"))

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.empty((len(x), len(w)), dtype=torch.float32, device=DEVICE)
        run(contract, schedule, x, w, y, None)
        return y

    return Request("linear", 512, m=2, n=128, dtype="bf16", device=DEVICE, fn=fn)


@pytest.mark.parametrize("tree", [Chain(), Split(4), Balanced(4)], ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: "split" if s.split else "whole")
def test_products_have_their_contract(tree: Tree, schedule: GemmSchedule) -> None:
    request = product(tree, schedule)
    expected = RevealedTree.from_contract(tree, 512, 16)
    found = reveal(request.fn, op="linear", k=512, m=2, n=128, dtype="bf16", device=DEVICE)
    assert found.tree == expected
    assert found.explained
    assert {f.name: f.value for f in found.arithmetic}["rounding"] == "toward zero"


def test_another_tree_is_told_and_named() -> None:
    operand, _ = operand_of(product(Split(4), SCHEDULES[0]))
    why = difference(operand, RevealedTree.from_contract(Balanced(4), 512, 16))
    assert why is not None and "contract split(4)" in why and "contract balanced(4)" in why
    assert difference(operand, RevealedTree.from_contract(Split(4), 512, 16)) is None


def attention_key() -> ScheduleKey:
    key = ContractKey("attention", "bf16", "bf16", "sm_90", head_dim=32, value_dim=32)
    return schedule_key(key, group=2)


def test_attention_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        monkeypatch.setattr(checkers, "KEYS", 600)
    checker = checker_of(attention_key(), DEVICE)
    assert isinstance(checker, AttentionChecker)
    schedule = default_at(checker.key, 0)
    assert checker.difference(schedule, 2) is None
    assert checker.other_tree(schedule, 2) is None


@pytest.mark.parametrize("op", ["log_softmax", "softmax", "rms_norm", "layer_norm"])
def test_rows_are_checked(op: str) -> None:
    out = "fp32" if op == "log_softmax" else "bf16"
    key = schedule_key(ContractKey(op, "bf16", out, "sm_90"), k=24)
    checker = checker_of(key, DEVICE)
    assert isinstance(checker, RowChecker) and checkable(key)
    for schedule in candidates_at(key, 3)[:2]:
        assert checker.difference(schedule, 16) is None
        assert checker.other_tree(schedule, 16) is None


def test_a_wrong_kernel_is_found_by_bits_and_by_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = checker_of(attention_key(), DEVICE)
    assert isinstance(checker, AttentionChecker)
    schedule = default_at(checker.key, 0)

    def reversed_keys(
        self: AttentionChecker, schedule: object, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        y = torch.softmax(q.float() @ k.float().mT / self.d**0.5, -1) @ v.float()
        return y.to(q.dtype).expand(-1, self.group, -1, -1)

    monkeypatch.setattr(AttentionChecker, "run", reversed_keys)
    assert "differ from the contract" in str(checker.difference(schedule, 4))
    assert "where the contract is" in str(checker.other_tree(schedule, 4))
