"""Language models: alone = in a batch, padded on either side = not padded, prefill = chunks =
decode, one cache = another. Stock is shown to fail where it does.
"""

from __future__ import annotations

from typing import Any

import pytest
import small_models as models
import torch

import samebits.integrations.transformers as sbt
from samebits.bits import equal as same_bits

LENGTHS = (5, 23, 14, 1)
KINDS = pytest.mark.parametrize("kind", models.DECODERS)


def alone(model: Any, rows: list[list[int]]) -> list[torch.Tensor]:
    return [model(torch.tensor([row])).logits[0] for row in rows]


def in_batch(model: Any, rows: list[list[int]], side: str) -> list[torch.Tensor]:
    batch = models.pad(rows, side)
    real = batch["attention_mask"].bool()
    logits = model(**batch, position_ids=models.positions(batch["attention_mask"])).logits
    return [logits[i][real[i]] for i in range(len(rows))]


def in_steps(model: Any, row: list[int], sizes: list[int], cache: Any) -> torch.Tensor:
    done, logits = 0, []
    for size in sizes:
        ids = torch.tensor([row[done : done + size]])
        places = torch.arange(done, done + size)[None]
        out = model(ids, position_ids=places, use_cache=True, **models.past(model, cache))
        logits.append(out.logits[0])
        done += size
    return torch.cat(logits)


@torch.no_grad()
def test_stock_follows_the_batch_and_the_chunks() -> None:
    from transformers import DynamicCache

    model, rows = models.decoder("llama", torch.float32), models.prompts(LENGTHS)
    expected = alone(model, rows)
    assert not all(map(same_bits, in_batch(model, rows, "left"), expected))
    chunks = in_steps(model, rows[1], [1] * len(rows[1]), DynamicCache(config=model.config))
    assert not same_bits(chunks, expected[1])


@KINDS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@torch.no_grad()
def test_padding_and_company_change_nothing(kind: str, dtype: torch.dtype, switch: None) -> None:
    model, rows = sbt.enable(models.decoder(kind, dtype)), models.prompts(LENGTHS)
    expected = alone(model, rows)
    assert all(torch.isfinite(x).all() for x in expected)
    for side in ("left", "right"):
        assert all(map(same_bits, in_batch(model, rows, side), expected)), side


@KINDS
@pytest.mark.parametrize("static", [False, True])
@torch.no_grad()
def test_prefill_chunks_and_decode_agree_in_every_cache(
    kind: str, static: bool, switch: None
) -> None:
    from transformers import DynamicCache, StaticCache

    model = sbt.enable(models.decoder(kind))
    row = models.prompts([23])[0]
    expected = model(torch.tensor([row])).logits[0]
    for sizes in ([23], [10, 13], [1] * 23, [7, 9, 1, 1, 5]):
        cache = (
            StaticCache(config=model.config, max_cache_len=40)
            if static
            else DynamicCache(config=model.config)
        )
        assert same_bits(in_steps(model, row, sizes, cache), expected), sizes


@KINDS
@torch.no_grad()
def test_generate_gives_a_request_the_same_bits_in_any_batch(kind: str, switch: None) -> None:
    model, rows = sbt.enable(models.decoder(kind)), models.prompts(LENGTHS)
    how = {
        "max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True,
        "output_logits": True,
    }  # fmt: skip
    expected = [model.generate(torch.tensor([row]), **how) for row in rows]
    batch = models.pad(rows, "left")
    for cache in (None, "static"):
        found = model.generate(**batch, **how, cache_implementation=cache)
        for i in range(len(rows)):
            for mine, theirs in zip(expected[i].logits, found.logits, strict=True):
                assert same_bits(mine[0], theirs[i]), (cache, i)


@torch.no_grad()
def test_assisted_generation_verifies_with_the_bits_of_decode(switch: None) -> None:
    model = sbt.enable(models.decoder("qwen3"))
    ids = torch.tensor(models.prompts([9]))
    how = {"max_new_tokens": 24, "do_sample": False, "return_dict_in_generate": True,
           "output_logits": True}  # fmt: skip
    plain = model.generate(ids, **how)
    drafted = model.generate(ids, **how, prompt_lookup_num_tokens=4)
    assert plain.sequences.tolist() == drafted.sequences.tolist()
    assert same_bits(torch.stack(plain.logits), torch.stack(drafted.logits))


@torch.no_grad()
def test_packed_rows_are_sequences_of_their_own(switch: None) -> None:
    model, rows = sbt.enable(models.decoder("gemma2")), models.prompts(LENGTHS)
    ids = torch.tensor([[token for row in rows for token in row]])
    places = torch.cat([torch.arange(len(row)) for row in rows])[None]
    logits = model(ids, position_ids=places, use_cache=False).logits[0]
    expected = alone(model, rows)
    assert all(map(same_bits, logits.split([len(row) for row in rows]), expected))


@torch.no_grad()
def test_padding_between_tokens_is_not_counted(switch: None) -> None:
    model, row = sbt.enable(models.decoder("llama")), models.prompts([9])[0]
    ids = torch.tensor([[*row[:4], 0, 0, *row[4:]]])
    seen = (torch.tensor([[*row[:4], 0, 0, *row[4:]]]) > 0).long()
    logits = model(ids, attention_mask=seen, position_ids=models.positions(seen)).logits[0]
    assert same_bits(logits[seen[0].bool()], model(torch.tensor([row])).logits[0])
