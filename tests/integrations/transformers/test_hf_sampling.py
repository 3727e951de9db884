"""``generate(do_sample=True)``: a row's tokens follow its seed, not its neighbours."""

from __future__ import annotations

import pytest
import small_models as models
import torch
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor

import samebits.integrations.transformers as sbt
from samebits.errors import ShapeError, UncoveredError
from samebits.integrations.transformers.sampling import unpadded

HOW = {"max_new_tokens": 8, "do_sample": True, "top_p": 0.9, "temperature": 1.3}


@torch.no_grad()
def test_each_row_has_its_seed(switch: None) -> None:
    model, rows = sbt.enable(models.decoder("qwen3")), models.prompts([6, 3, 11])
    alone = [
        model.generate(torch.tensor([row]), seeds=[seed], **HOW)[0, len(row) :].tolist()
        for seed, row in enumerate(rows)
    ]
    batch = models.pad(rows, "left")
    found = model.generate(**batch, seeds=[0, 1, 2], **HOW)
    assert found[:, batch["input_ids"].shape[1] :].tolist() == alone
    others = model.generate(**batch, seeds=[7, 1, 8], **HOW)[:, batch["input_ids"].shape[1] :]
    assert others[1].tolist() == alone[1] and others[0].tolist() != alone[0]


@torch.no_grad()
def test_a_seed_can_come_from_torch_and_is_asked_for_once_a_row(switch: None) -> None:
    model, ids = sbt.enable(models.decoder("llama")), torch.tensor(models.prompts([6]))
    torch.manual_seed(2**63 + 5)
    first = model.generate(ids, **HOW)
    assert model.generate(ids, **HOW).tolist() == first.tolist()
    assert model.generate(ids, seeds=2**63 + 5, **HOW).tolist() == first.tolist()
    with pytest.raises(ShapeError, match="2 seeds for 1 prompts"):
        model.generate(ids, seeds=[1, 2], **HOW)


@torch.no_grad()
def test_beams_that_sample_are_refused(switch: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    with pytest.raises(UncoveredError, match="beam search with sampling"):
        model.generate(torch.tensor([[5, 6]]), num_beams=2, **HOW)


@torch.no_grad()
def test_several_answers_to_one_prompt_differ(switch: None) -> None:
    model, rows = sbt.enable(models.decoder("llama")), models.prompts([6, 3])
    batch = models.pad(rows, "left")
    several = model.generate(**batch, seeds=[4, 5], num_return_sequences=3, **HOW)[:, 6:].tolist()
    single = model.generate(**batch, seeds=[4, 5], **HOW)[:, 6:].tolist()
    assert [several[0], several[3]] == single
    assert len({tuple(answer) for answer in several}) == 6
    alone = model.generate(torch.tensor([rows[1]]), seeds=5, num_return_sequences=3, **HOW)
    assert alone[:, 3:].tolist() == several[3:]


#: Each looks at a row's tokens; the first rewards what was there, so padding would be drawn.
READERS = {"repetition_penalty": 0.3, "no_repeat_ngram_size": 2, "min_length": 8}


@torch.no_grad()
@pytest.mark.parametrize("sample", [False, True])
def test_processors_see_no_padding(sample: bool, switch: None) -> None:
    model, rows = sbt.enable(models.decoder("llama")), models.prompts([9, 2, 5])
    how = HOW | READERS | {"do_sample": sample, "eos_token_id": 5}
    seeds = [{"seeds": [seed]} if sample else {} for seed in range(3)]
    alone = [
        model.generate(torch.tensor([row]), **how, **seed)[0, len(row) :]
        for row, seed in zip(rows, seeds, strict=True)
    ]
    found = model.generate(
        **models.pad(rows, "left"), **how, **({"seeds": [0, 1, 2]} if sample else {})
    )[:, 9:]
    for mine, theirs in zip(found, alone, strict=True):
        assert mine[: len(theirs)].tolist() == theirs.tolist()


def test_stock_processors_see_padding() -> None:
    row, scores = torch.tensor([[7, 8]]), torch.ones(1, models.VOCABULARY)
    reader = RepetitionPenaltyLogitsProcessor(0.3)
    padded = torch.tensor([[models.PAD, 7, 8]])
    assert not torch.equal(reader(padded, scores), reader(row, scores))
    mine = unpadded(LogitsProcessorList([reader]), torch.tensor([[0, 1, 1]]))
    assert torch.equal(mine(padded, scores), reader(row, scores))
