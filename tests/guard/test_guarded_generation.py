"""A fault inside a request is put right inside the request: same tokens, same logits, no crash."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from faulty import broken, engine_fault, events, flip

import samebits
from samebits import bits

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=128, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def generate(model: Any, **options: Any) -> tuple[list[int], torch.Tensor]:
    """Tokens, and the logits of all steps."""
    torch.manual_seed(1)
    ids = torch.randint(1, 128, (1, 600))  # two leaves of keys
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False,
        output_logits=True, return_dict_in_generate=True, **options,
    )  # fmt: skip
    return out.sequences[0, 600:].tolist(), torch.stack(out.logits)


@pytest.mark.parametrize(
    "point", [("gemm", "linear"), ("attention", "dense"), ("reduce", "reduce")]
)
def test_samples_mend_a_request(model: Any, point: tuple[str, str]) -> None:
    with samebits.deterministic():
        tokens, logits = generate(model)
    with broken(*point, flip), samebits.deterministic(guard="sample:1"), events() as heard:
        mended, mended_logits = generate(model)
    assert [(e.verdict, e.replaced) for e in heard] == [("transient", True)]
    assert mended == tokens and bits.equal(mended_logits, logits)


def test_paths_mend_a_request(model: Any) -> None:
    with samebits.deterministic():
        tokens, logits = generate(model)
    with samebits.deterministic(guard="path"), events() as heard, engine_fault("lost_tile"):
        mended, mended_logits = generate(model)
    assert [e.kind for e in heard] == ["path"]
    assert mended == tokens and bits.equal(mended_logits, logits)


def test_a_planned_cache_that_loses_a_bit_ends_the_request(model: Any) -> None:
    from samebits.errors import GuardError
    from samebits.integrations.transformers import KVCache

    cache = KVCache.for_model(model, batch=1, length=620)
    with samebits.deterministic(guard="sample:1"), events() as heard:
        generate(model, past_key_values=cache)
        assert not heard
        flip(cache.layers[1].keys.view(-1), 9)
        step = {"input_ids": torch.tensor([[5]]), "past_key_values": cache}
        with pytest.raises(GuardError, match="kv cache"):
            model(**step)
    assert [e.kind for e in heard] == ["cache"]
