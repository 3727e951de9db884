"""Continuous batching: a request has the tokens and logarithms of ``generate``, in any company."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import small_models as models
import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import samebits.integrations.transformers as sbt
from samebits.errors import SwitchError
from samebits.ops import token_logprob

LENGTHS = (5, 23, 14, 1, 40)
NEW = 10


def configuration(tokens: int) -> Any:
    names = inspect.signature(ContinuousBatchingConfig).parameters
    page = {"block_size" if "block_size" in names else "page_size": 8}
    return ContinuousBatchingConfig(
        num_blocks=64, max_batch_tokens=tokens, return_logprobs=True, seed=11,
        max_memory_percent=0.1, **page,
    )  # fmt: skip


def serve(
    model: Any, rows: list[list[int]], *, sample: bool = False, tokens: int = 64, top_k: int = 20
) -> dict[tuple[int, ...], Any]:
    """The outputs of ``generate_batch``, by prompt."""
    wanted = GenerationConfig(
        max_new_tokens=NEW, do_sample=sample, eos_token_id=-1, pad_token_id=models.PAD, top_k=top_k,
        temperature=0.7,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        found = model.generate_batch(
            rows,
            generation_config=wanted,
            continuous_batching_config=configuration(tokens),
            progress_bar=False,
        )
    return {tuple(output.prompt_ids): output for output in found.values()}


def same(a: Any, b: Any) -> bool:
    return bool(a.generated_tokens == b.generated_tokens and a.logprobs == b.logprobs)


def test_stock_follows_the_company() -> None:
    model, rows = models.decoder("llama", torch.float32), models.prompts(LENGTHS)
    together = serve(model, rows)
    alone = [serve(model, [row])[tuple(row)] for row in rows]
    assert not all(same(together[tuple(row)], one) for row, one in zip(rows, alone, strict=True))


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mistral", "gpt_oss"])
def test_a_request_has_one_answer(kind: str, switch: None) -> None:
    model, rows = sbt.enable(models.decoder(kind, torch.float32)), models.prompts(LENGTHS)
    before = model.config._attn_implementation
    together = serve(model, rows)
    in_chunks = serve(model, rows, tokens=16)
    assert model.config._attn_implementation == before
    for row in rows:
        assert len(together[tuple(row)].generated_tokens) == NEW
        assert same(together[tuple(row)], in_chunks[tuple(row)])
    one = rows[1]
    assert same(together[tuple(one)], serve(model, [one])[tuple(one)])
    out = model.generate(
        torch.tensor([one]), max_new_tokens=NEW, do_sample=False, eos_token_id=-1,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    tokens = out.sequences[0, len(one) :]
    assert tokens.tolist() == together[tuple(one)].generated_tokens
    logits = torch.cat(out.logits)
    logprobs = token_logprob(logits, tokens, dtype=torch.float32).tolist()
    assert logprobs == together[tuple(one)].logprobs


def test_sampled_tokens_follow_the_seed_alone(switch: None) -> None:
    model, rows = sbt.enable(models.decoder("llama", torch.float32)), models.prompts(LENGTHS)
    together = serve(model, rows, sample=True)
    assert same(together[tuple(rows[2])], serve(model, [rows[2]], sample=True)[tuple(rows[2])])
    batch = models.pad(rows, "left")
    found = model.generate(
        **batch, max_new_tokens=NEW, do_sample=True, eos_token_id=-1, top_k=20, temperature=0.7,
        seeds=[11] * len(rows),
    )  # fmt: skip
    for i, row in enumerate(rows):
        drawn = found[i, batch["input_ids"].shape[1] :].tolist()
        assert drawn == together[tuple(row)].generated_tokens


def test_requests_can_have_seeds_of_their_own(switch: None) -> None:
    model, rows = sbt.enable(models.decoder("llama", torch.float32)), models.prompts(LENGTHS)
    how = {"max_new_tokens": NEW, "do_sample": True, "eos_token_id": -1, "top_k": 0}
    expected = [
        model.generate(torch.tensor([row]), seeds=[seed], **how)[0, len(row) :].tolist()
        for seed, row in enumerate(rows)
    ]
    wanted = GenerationConfig(pad_token_id=models.PAD, **how)
    with model.continuous_batching_context_manager(
        generation_config=wanted, continuous_batching_config=configuration(tokens=64)
    ) as manager:
        for seed, row in enumerate(rows):
            manager.add_request(row, request_id=f"own {seed}", seed=seed)
        found = {}
        while len(found) < len(rows):
            output = manager.get_result(timeout=300)
            assert output is not None and output.error is None
            if output.is_finished():
                found[output.request_id] = output.generated_tokens
    assert [found[f"own {seed}"] for seed in range(len(rows))] == expected


def test_an_ordinary_call_meanwhile_is_refused(switch: None) -> None:
    model, ids = sbt.enable(models.decoder("llama")), torch.tensor([[3, 4]])
    running = model.continuous_batching_context_manager(
        generation_config=GenerationConfig(max_new_tokens=2, eos_token_id=-1),
        continuous_batching_config=configuration(tokens=64),
    )
    with running, pytest.raises(SwitchError, match="while continuous batching uses it"):
        model(ids)
    model(ids)


def test_disabling_a_model_that_is_in_use_is_refused(switch: None) -> None:
    """The manager would give it our attention again when it stops."""
    model = sbt.enable(models.decoder("llama"))
    before = model.config._attn_implementation
    with (
        model.continuous_batching_context_manager(
            generation_config=GenerationConfig(max_new_tokens=2, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=configuration(64),
        ),
        pytest.raises(SwitchError, match="stop its manager"),
    ):
        sbt.disable(model)
    assert model.config._attn_implementation == before
    sbt.disable(model)
    assert model.config._attn_implementation != before
