"""Attention that checks its own paths: the same bits, no false alarm, and every fault is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from attention_kernel_cases import DEVICE, MANY, attend, contract, qkv

from samebits import bits
from samebits.engines import tickets
from samebits.engines.triton.attention.run import _Call
from samebits.engines.triton.attention.schedule import AttentionSchedule

WHOLE = AttentionSchedule(block_m=16, programs=1, spread=False)
SPLIT = AttentionSchedule(block_m=16, programs=MANY, spread=False, span=1, batch=2, pdl=False)
SPREAD = AttentionSchedule(block_m=16, values=32)
HOME = torch.device("cpu" if DEVICE == "cpu" else "cuda:0")
#: What goes to the workspace, and with what the fold works.
Leaves = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    """Paths are checked, and nothing is left of earlier tests."""
    tickets.check(True)
    tickets.take(HOME)
    yield
    tickets.check(False)


def wrong() -> int:
    return sum(n for _, n in tickets.take(HOME))


@pytest.mark.parametrize("options", [{}, {"window": 70}, {"causal": False}], ids=str)
@pytest.mark.parametrize(
    ("schedule", "rows"), [(WHOLE, 5), (SPLIT, 5), (WHOLE, 1), (SPLIT, 1), (SPREAD, 1)]
)
def test_right_attention_is_right(
    schedule: AttentionSchedule, rows: int, options: dict[str, Any]
) -> None:
    operands = qkv(q_len=rows, kv_len=200)
    checked = attend(contract(), schedule, *operands, **options)[0]
    assert wrong() == 0
    tickets.check(False)
    assert bits.equal(attend(contract(), schedule, *operands, **options)[0], checked)


@pytest.mark.parametrize("schedule", [WHOLE, SPLIT, SPREAD], ids=["whole", "split", "spread"])
def test_leaves_of_another_length_are_seen(
    monkeypatch: pytest.MonkeyPatch, schedule: AttentionSchedule
) -> None:
    honest = tickets.ticket

    def ticket(device: torch.device, subject: Any, expected: int, leaf: int = 0) -> torch.Tensor:
        return honest(device, tickets.Subject(subject.op, "other", ""), expected, 2 * leaf)

    monkeypatch.setattr(tickets, "ticket", ticket)
    attend(contract(), schedule, *qkv(q_len=1, kv_len=200))
    assert wrong() > 0


def flip(partial: torch.Tensor, stats: torch.Tensor, seals: torch.Tensor) -> None:
    partial.view(torch.int32)[0, 1, 3] ^= 1 << 5


def flip_denominator(partial: torch.Tensor, stats: torch.Tensor, seals: torch.Tensor) -> None:
    stats.view(torch.int32)[0, 1, 1] ^= 1


def clear(partial: torch.Tensor, stats: torch.Tensor, seals: torch.Tensor) -> None:
    partial[0, 1] = 0


def exchange(partial: torch.Tensor, stats: torch.Tensor, seals: torch.Tensor) -> None:
    for x in (partial, stats, seals):
        x[0, :2] = x[0, :2].flip(0).clone()


@pytest.mark.parametrize("harm", [flip, flip_denominator, clear, exchange])
@pytest.mark.parametrize("schedule", [SPLIT, SPREAD], ids=["split", "spread"])
def test_leaves_that_change_before_the_fold_are_seen(
    monkeypatch: pytest.MonkeyPatch, schedule: AttentionSchedule, harm: Leaves
) -> None:
    honest = _Call._fold

    def fold(self: Any, partial: Any, stats: Any, seals: Any, leaves: int, cut: int) -> None:
        harm(partial, stats, seals)
        honest(self, partial, stats, seals, leaves, cut)

    monkeypatch.setattr(_Call, "_fold", fold)
    attend(contract(), schedule, *qkv(q_len=1, kv_len=200))
    assert wrong() > 0


def test_leaves_of_the_call_before_are_not_folded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[Any, Any] = {}
    workspace, walk = _Call._workspace, _Call._walk

    def same(self: Any, leaves: int, cut: int) -> Any:
        return kept.setdefault("memory", workspace(self, leaves, cut))

    monkeypatch.setattr(_Call, "_workspace", same)
    operands = qkv(q_len=1, kv_len=200)
    attend(contract(), SPLIT, *operands)
    assert wrong() == 0
    monkeypatch.setattr(_Call, "_walk", lambda *_: None)
    attend(contract(), SPLIT, *operands)
    assert wrong() > 0
    monkeypatch.setattr(_Call, "_walk", walk)
    attend(contract(), SPLIT, *operands)
    assert wrong() == 0
