"""What is done where leaves are cut at positions (a GPU), run on a CPU, whose bits it must keep."""

from __future__ import annotations

import pytest
import small_models as models
import torch
from test_hf_batching import LENGTHS, same, serve
from test_hf_decoders import alone, in_batch, in_steps
from test_hf_encoders import vectors

import samebits.integrations.transformers as sbt
from samebits.bits import equal as same_bits
from samebits.errors import UncoveredError
from samebits.integrations.transformers import attention

KINDS = pytest.mark.parametrize("kind", ["llama", "gemma2", "mistral", "gpt_oss"])


@pytest.fixture
def leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose leaves have 16 keys, from position 0."""
    monkeypatch.setattr(attention, "leaf_of", lambda query, value: 16)


@KINDS
@torch.no_grad()
def test_padding(kind: str, switch: None, leaves: None) -> None:
    model, rows = sbt.enable(models.decoder(kind)), models.prompts([5, 43, 14, 1])
    expected = alone(model, rows)
    for side in ("left", "right"):
        assert all(map(same_bits, in_batch(model, rows, side), expected)), side


@KINDS
@torch.no_grad()
def test_caches_that_forget(kind: str, switch: None, leaves: None) -> None:
    from transformers import DynamicCache, StaticCache

    model, row = sbt.enable(models.decoder(kind)), models.prompts([43])[0]
    expected = alone(model, [row])[0]
    for sizes in ([20, 23], [1] * 43, [7, 19, 1, 1, 15]):
        dynamic = DynamicCache(config=model.config)
        assert same_bits(in_steps(model, row, sizes, dynamic), expected), sizes
        static = StaticCache(config=model.config, max_cache_len=50)
        assert same_bits(in_steps(model, row, sizes, static), expected), sizes


@KINDS
@torch.no_grad()
def test_generate_with_padding_in_caches_that_forget(kind: str, switch: None, leaves: None) -> None:
    model, rows = sbt.enable(models.decoder(kind)), models.prompts([5, 33, 14])
    how = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True,
           "output_logits": True}  # fmt: skip
    single = [model.generate(torch.tensor([row]), **how) for row in rows]
    for cache in (None, "static"):
        found = model.generate(**models.pad(rows, "left"), **how, cache_implementation=cache)
        for i in range(len(rows)):
            for mine, theirs in zip(single[i].logits, found.logits, strict=True):
                assert same_bits(mine[0], theirs[i]), (cache, i)


@pytest.mark.parametrize("kind", ["gemma2", "mistral"])
def test_windows_in_continuous_batching(
    kind: str, switch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = sbt.enable(models.decoder(kind)), models.prompts(LENGTHS)
    expected = serve(model, rows)
    monkeypatch.setattr(attention, "leaf_of", lambda query, value: 16)
    for tokens in (64, 16):
        found = serve(model, rows, tokens=tokens)
        assert all(same(found[tuple(row)], expected[tuple(row)]) for row in rows)


@torch.no_grad()
def test_encoders(switch: None, leaves: None) -> None:
    model, rows = sbt.enable(models.encoder()), models.prompts([4, 39, 11])
    expected = vectors(model, rows, None)
    assert same_bits(vectors(model, rows, "right"), expected)
    assert same_bits(vectors(model, rows, "left"), expected)


@torch.no_grad()
def test_padding_between_tokens_is_refused(switch: None, leaves: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    seen = torch.tensor([[1, 1, 0, 1, 1]])
    with pytest.raises(UncoveredError, match="padding between real tokens"):
        model(torch.tensor([[5, 6, 0, 7, 8]]), attention_mask=seen)
