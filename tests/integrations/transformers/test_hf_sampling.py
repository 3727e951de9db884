"""``generate(do_sample=True)``: a row's tokens follow its seed, not its neighbours."""

from __future__ import annotations

from typing import Any

import pytest
import small_models as models
import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    T5Config,
    T5ForConditionalGeneration,
)

import samebits.integrations.transformers as sbt
from samebits.errors import SettingError, ShapeError, UncoveredError
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


def _translator() -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.3)
    return model


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.6}, {"num_return_sequences": 2}])
def test_rows_of_a_decoder_behind_an_encoder_draw_alone(
    side: str, more: dict[str, Any], switch: None
) -> None:
    model, rows = sbt.enable(_translator()), [[5, 9, 8, 7, 6, 11], [12], [20, 21, 22]]
    seeds = [3, 4, 5]
    alone = [
        answer
        for row, seed in zip(rows, seeds, strict=True)
        for answer in model.generate(torch.tensor([row]), seeds=[seed], **HOW, **more).tolist()
    ]
    assert len({tuple(answer) for answer in alone}) == len(alone)
    assert model.generate(**models.pad(rows, side), seeds=seeds, **HOW, **more).tolist() == alone


@torch.no_grad()
@pytest.mark.parametrize("name", ["encoder_repetition_penalty", "encoder_no_repeat_ngram_size"])
def test_processors_of_the_prompt_see_no_padding(name: str, switch: None) -> None:
    """What is added to the padding's score (id 0) shows whether it was taken for a token."""
    model, rows = sbt.enable(_translator()), [[5, 9, 8, 7, 6, 11], [12], [20, 21]]
    options = {name: {"encoder_repetition_penalty": 50.0, "encoder_no_repeat_ngram_size": 1}[name]}
    how = {"max_new_tokens": 3, "output_scores": True, "return_dict_in_generate": True} | options

    def scores(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack(model.generate(**batch, **how).scores, 1)

    found = scores(models.pad(rows, "right"))
    for row, mine in zip(rows, found, strict=True):
        assert torch.equal(scores(models.pad([row], "right"))[0], mine)


@torch.no_grad()
def test_embedded_prompts_draw_what_their_ids_draw(switch: None) -> None:
    model, rows = sbt.enable(models.decoder("llama")), models.prompts([9, 2])
    how = HOW | {"repetition_penalty": 1.5}
    by_ids = [
        model.generate(torch.tensor([row]), seeds=[seed], **HOW)[0, len(row) :].tolist()
        for seed, row in enumerate(rows)
    ]
    embed = model.get_input_embeddings()
    alone = model.generate(inputs_embeds=embed(torch.tensor([rows[1]])), seeds=[1], **HOW)
    assert alone[0].tolist() == by_ids[1]
    batch = models.pad(rows, "left")
    mask = {"attention_mask": batch["attention_mask"]}
    embedded = embed(batch["input_ids"])
    assert model.generate(inputs_embeds=embedded, seeds=[0, 1], **mask, **HOW).tolist() == by_ids
    # A penalty sees what was drawn, all of it: no column of it is padding.
    last = model.generate(inputs_embeds=embed(torch.tensor([rows[1]])), seeds=[1], **how).tolist()
    among = model.generate(inputs_embeds=embedded, seeds=[0, 1], **mask, **how).tolist()
    assert among[1] == last[0]


@torch.no_grad()
def test_seeds_are_whole_numbers_of_64_bits(switch: None) -> None:
    model, ids = sbt.enable(models.decoder("llama")), torch.tensor(models.prompts([6]))
    first = model.generate(ids, seeds=[5], **HOW).tolist()
    for seeds in (5, torch.tensor([5]), torch.tensor(5), (5,)):
        assert model.generate(ids, seeds=seeds, **HOW).tolist() == first
    for wrong in (1.5, True, 2**64, -(2**63) - 1, "5", [5.0]):
        with pytest.raises(SettingError, match="no whole number of 64 bits"):
            model.generate(ids, seeds=wrong, **HOW)
