"""The checker on language models and encoders: planted faults of each kind are told apart."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samebits.check import Report, check
from samebits.check.speed import generate
from samebits.check.tokens import Sizes, pack

SIZES = Sizes((1, 2, 3, 9), 37, 11, 2)
VOCABULARY = 50


@dataclass
class Cache:
    """The tokens seen so far; 0 where they are padding."""

    seen: Tensor
    calls: list[int] = field(default_factory=list)


class Exact(nn.Module):
    """A language model in integers, so exact: position t's logits hash the real tokens up to t."""

    name = "exact"
    vocabulary = VOCABULARY

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.module, self.fault = self, fault
        self.weight = nn.Parameter(torch.arange(1.0, VOCABULARY + 1), requires_grad=False)

    def forward(self, seen: Tensor) -> Tensor:
        """[B, S] tokens + 1 (0: padding) to [B, S, V]."""
        return (seen.cumsum(1)[..., None] % 97 + 1).float() * self.weight

    def logits(self, ids: Tensor, cache: Any = None, mask: Tensor | None = None) -> Tensor:
        new = ids + 1 if mask is None else (ids + 1) * mask
        seen = new if cache is None else torch.cat([cache.seen, new], 1)
        logits: Tensor = self(seen)[:, -ids.shape[1] :]
        rows, tokens = ids.shape
        faulty = {
            "": False,
            "rows": rows == 3,
            "decode": tokens == 1 and cache is not None,
            "chunk": tokens > 1 and cache is not None and cache.seen.shape[1] > 0,
            "padding": mask is not None,
        }[self.fault]
        if cache is not None:
            cache.seen = seen
        return logits * (1 + 2.0**-20) if faulty else logits

    def new_cache(self, batch: int, capacity: int) -> Cache:
        return Cache(torch.zeros(batch, 0, dtype=torch.long))

    def fork(self, cache: Cache) -> Cache:
        return copy.deepcopy(cache)

    def prompts(self) -> list[tuple[str, Tensor]]:
        return [(self.text(ids), ids) for ids in map(torch.tensor, ([1, 2, 3], [4, 5], [6]))]

    def end(self, ids: Tensor) -> int:
        return 7

    def text(self, ids: Tensor) -> str:
        return "".join(chr(97 + i % 26) for i in ids.tolist())


def run(model: Exact, **how: Any) -> Report:
    return check(model, sizes=SIZES, switch=nullcontext, **how)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("", set()),
        ("rows", {"rows", "padding", "decode"}),
        ("decode", {"chunks", "decode", "prefix"}),  # decode steps agree with each other
        ("chunk", {"chunks", "prefix"}),
        ("padding", {"padding"}),
    ],
)
def test_each_kind_of_fault_is_told_apart(fault: str, found: set[str]) -> None:
    report = run(Exact(fault), costs=False)
    assert {t.name for t in report.tests if t.stock and t.stock.verdict == "differs"} == found
    assert report.exit_status == (1 if found else 0)


def test_all_logits_of_all_requests_are_compared() -> None:
    report = run(Exact("rows"), costs=False, promises=["rows"])
    outcome = report.tests[0].stock
    assert outcome is not None
    case = next(c for c in outcome.cases if c.x == 3 and c.group == "prefill")
    assert case.elements == 3 * 11 * VOCABULARY
    assert len(case.rows) == 3 and all(case.rows)


def test_a_change_of_one_late_logit_is_seen() -> None:
    class Late(Exact):
        def logits(self, ids: Tensor, cache: Any = None, mask: Tensor | None = None) -> Tensor:
            logits = super().logits(ids, cache, mask)
            if len(ids) == 2:
                logits[1, -1, -1] *= 1 + 2.0**-20
            return logits

    report = run(Late(), costs=False, promises=["rows"])
    outcome = report.tests[0].stock
    assert outcome is not None
    assert [c.rows for c in outcome.cases if c.differing and c.group == "prefill"] == [(0, 1)]


def test_text_alone_and_in_company_is_shown_with_its_first_step_that_differs() -> None:
    report = run(Exact("rows"), promises=["repeats"])
    stock = [text for text in report.texts if text.side == "stock"]
    assert [text.prompt for text in stock] == ["bcd", "ef", "g"]
    assert all(text.company == 2 and text.first_logits == 0 for text in stock)
    assert all(text.differing_steps == text.steps == 7 for text in stock)
    assert all(len(text.alone) == len(text.together) == 7 for text in stock)
    assert {speed.label for speed in report.speed} == {
        "prefill, batch 1", "prefill, batch 8", "generate, batch 1", "generate, batch 8"
    }  # fmt: skip
    assert Report.from_json(report.to_json()) == report


def test_greedy_generation_takes_the_largest_logit() -> None:
    model = Exact()
    tokens, logits = generate(model, [torch.tensor([1, 2, 3]), torch.tensor([7])], 4)
    assert tokens.shape == (2, 4) and len(logits) == 4
    for row, prompt in enumerate(([1, 2, 3], [7])):
        text = list(prompt)
        for _ in range(4):
            text.append(int(model(torch.tensor([text]) + 1)[0, -1].argmax()))
        assert text[len(prompt) :] == tokens[row].tolist()


def test_packing_pads_on_either_side() -> None:
    short, long = torch.tensor([1, 2]), torch.tensor([3, 4, 5])
    left, right = pack([short, long], side="left", pad=9), pack([short, long], length=4, pad=9)
    assert left.ids.tolist() == [[9, 1, 2], [3, 4, 5]] and left.spans == ((1, 3), (0, 3))
    assert right.ids.tolist() == [[1, 2, 9, 9], [3, 4, 5, 9]] and right.spans == ((0, 2), (0, 3))
    assert left.mask.tolist() == [[False, True, True], [True, True, True]] and left.padded


class Mean(nn.Module):
    """An encoder: the mean of embeddings, over the padding too where `leaky`."""

    name = "mean"
    vocabulary = VOCABULARY

    def __init__(self, leaky: bool) -> None:
        super().__init__()
        self.module, self.leaky = self, leaky
        self.table = nn.Embedding(VOCABULARY, 4)
        self.table.weight.data = torch.arange(4.0 * VOCABULARY).view(VOCABULARY, 4)

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        mask = torch.ones_like(mask) if self.leaky else mask
        return (self.table(ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def test_pooling_over_the_padding_is_found() -> None:
    good = check(Mean(False), sizes=SIZES, costs=False, switch=nullcontext)
    assert good.kind == "encoder" and good.holds
    assert {test.name for test in good.tests if test.skipped} == {"chunks", "decode", "prefix"}
    bad = check(Mean(True), sizes=SIZES, costs=False, switch=nullcontext)
    assert [t.name for t in bad.tests if t.stock and t.stock.verdict == "differs"] == ["padding"]


def test_the_bundled_model_on_stock_torch_is_traced_to_a_matrix_product() -> None:
    from samebits.models.tiny import TinyConfig, TinyLM

    torch.manual_seed(0)
    model = TinyLM(TinyConfig(layers=2)).eval().requires_grad_(False)
    report = check(model, name="tiny", costs=False, promises=["chunks"], switch=nullcontext)
    outcome = report.tests[0].stock
    assert outcome is not None and outcome.verdict == "differs" and outcome.divergence is not None
    found = outcome.divergence
    assert (found.op, found.module) == ("aten.mm.default", "layers.0.attention.q")
    assert found.faithful
    assert [layer.name for layer in found.layers][:2] == ["embed", "layers.0.attention_norm"]
