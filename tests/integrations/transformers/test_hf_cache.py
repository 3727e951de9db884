"""The planned KV cache: sizes ahead of time; compact or not, one request has one set of bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import small_models as models
import torch

import samebits.integrations.transformers as sbt
from samebits.bits import equal as same_bits
from samebits.errors import CapacityError, SettingError, ShapeError
from samebits.integrations.transformers.cache import compress, expand
from samebits.integrations.transformers.kvplan import LayerShape, free_memory, plan_cache

FORMS = pytest.mark.parametrize("form", ["full", "int8", "fp8"])
LENGTHS = (5, 23, 14, 1)


@FORMS
def test_the_plan_is_what_is_allocated(form: Any) -> None:
    model = models.decoder("llama")
    cache = sbt.KVCache.for_model(model, batch=3, length=50, form=form)
    plan = cache.plan
    assert cache.allocated_bytes == plan.bytes
    assert plan.bytes == 3 * 50 * plan.row_bytes
    assert plan.token_bytes == 2 * 2 * (2 * 12 * 2 if form == "full" else 2 * 12 + 8)


def test_what_does_not_fit_is_said_before_anything_is_allocated() -> None:
    model = models.decoder("llama")
    plan = plan_cache(model, batch=4, length=100)
    plan.check(plan.bytes)
    with pytest.raises(CapacityError, match=r"4 sequences of 100 tokens.*length=99, batch=3") as e:
        plan.check(plan.bytes - 1)
    assert 'form="int8"' not in str(
        e.value
    )  # with its workspace a model of two layers gains little
    with pytest.raises(CapacityError, match=r"What would: length=1$"):  # but no batch of 0
        plan.check(4 * plan.row_bytes)
    with pytest.raises(CapacityError, match=r"What would: a smaller model$"):
        plan.check(0)
    with pytest.raises(CapacityError, match="does not fit"):
        sbt.KVCache.for_model(model, batch=2**20, length=2**20)
    assert free_memory(torch.device("cpu")) > 2**20
    deep = replace(plan, layers=(LayerShape(8, 128, 128),) * 40)
    with pytest.raises(CapacityError, match=r'form="int8" \('):
        deep.check(deep.bytes - 1)


def test_bad_plans() -> None:
    model = models.decoder("llama")
    with pytest.raises(SettingError, match="form='int3'"):
        plan_cache(model, batch=1, length=1, form="int3")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="at least 1"):
        plan_cache(model, batch=0, length=1)
    from transformers import AutoModelForCausalLM, Qwen3NextConfig, T5Config
    from transformers import T5ForConditionalGeneration as T5

    with pytest.raises(SettingError, match="an encoder's keys"):
        plan_cache(T5(T5Config(vocab_size=9, d_model=8, num_layers=1)), batch=1, length=1)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 9, "num_experts": 2}
    kinds = ["linear_attention", "full_attention"]
    hybrid = AutoModelForCausalLM.from_config(Qwen3NextConfig(**sizes, layer_types=kinds))
    with pytest.raises(SettingError, match="LinearAttentionLayer keeps another state"):
        plan_cache(hybrid, batch=1, length=1)


@pytest.mark.parametrize("kind, largest", [(torch.int8, 127.0), (torch.float8_e4m3fn, 448.0)])
def test_a_tokens_numbers_follow_that_token_alone(kind: torch.dtype, largest: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 16).to(torch.bfloat16) * torch.logspace(-30, 30, 4)[:, None, None]
    x = x.to(torch.bfloat16)
    x[1, 2] = 0
    stored, scale = compress(x, kind, largest)
    for i in range(4):
        alone, own = compress(x[i : i + 1, 1:2], kind, largest)
        assert same_bits(alone.float(), stored[i : i + 1, 1:2].float())
        assert same_bits(own, scale[i : i + 1, 1:2])
    back = expand(stored, scale, torch.empty_like(x))
    top = x.abs().amax(-1, keepdim=True).float()
    worst = 0.5 / 127 + 2**-8 if kind is torch.int8 else 2**-4
    assert ((back.float() - x.float()).abs() <= worst * top).all()
    assert same_bits(back[1, 2], torch.zeros(16, dtype=torch.bfloat16))


@FORMS
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss", "deepseek_v3"])
@torch.no_grad()
def test_prefill_chunks_and_decode_agree_in_it(kind: str, form: Any, switch: None) -> None:
    model = sbt.enable(models.decoder(kind))
    row = models.prompts([23])[0]
    cache = sbt.KVCache.for_model(model, batch=2, length=40, form=form)
    runs = []
    for sizes in ([23], [10, 13], [1] * 23):
        cache.reset()
        done, logits = 0, []
        for size in sizes:
            ids = torch.tensor([row[done : done + size]])
            places = torch.arange(done, done + size)[None]
            out = model(ids, position_ids=places, use_cache=True, **models.past(model, cache))
            logits.append(out.logits[0])
            done += size
        runs.append(torch.cat(logits))
    assert same_bits(runs[1], runs[0]) and same_bits(runs[2], runs[0])
    plain = model(torch.tensor([row])).logits[0]
    assert same_bits(plain, runs[0]) == (form == "full")
    close = {"full": 1.0, "int8": 0.999, "fp8": 0.98}[form]
    assert torch.cosine_similarity(plain.float(), runs[0].float()).min() > close - 1e-5


@FORMS
@torch.no_grad()
def test_generate_gives_a_request_the_same_bits_in_any_batch(form: Any, switch: None) -> None:
    model, rows = sbt.enable(models.decoder("qwen3")), models.prompts(LENGTHS)
    how: dict[str, Any] = {
        "max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True,
        "output_logits": True,
    }  # fmt: skip
    cache = sbt.KVCache.for_model(model, batch=len(rows), length=40, form=form)
    expected = []
    for row in rows:
        cache.reset()
        expected.append(model.generate(torch.tensor([row]), past_key_values=cache, **how))
    cache.reset()
    found = model.generate(**models.pad(rows, "left"), past_key_values=cache, **how)
    for i in range(len(rows)):
        for mine, theirs in zip(expected[i].logits, found.logits, strict=True):
            assert same_bits(mine[0], theirs[i])


@torch.no_grad()
def test_beams_and_drafts_can_use_it(switch: None) -> None:
    model, row = sbt.enable(models.decoder("qwen3")), models.prompts([9])
    ids = torch.tensor(row)
    for how in ({"num_beams": 3}, {"prompt_lookup_num_tokens": 3}):
        cache = sbt.KVCache.for_model(model, batch=3, length=40)
        plain = model.generate(ids, max_new_tokens=12, do_sample=False, **how)
        planned = model.generate(
            ids, max_new_tokens=12, do_sample=False, past_key_values=cache, **how
        )
        assert plain.tolist() == planned.tolist()


@torch.no_grad()
def test_what_does_not_fit_the_plan_is_refused(switch: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    cache = sbt.KVCache.for_model(model, batch=2, length=6)

    def step(rows: int, tokens: int) -> None:
        model(torch.full((rows, tokens), 3), use_cache=True, **models.past(model, cache))

    step(2, 4)
    with pytest.raises(ShapeError, match="1 sequences, but 2 are in it"):
        step(1, 1)
    with pytest.raises(ShapeError, match=r"4 \+ 3 tokens, but room for 6"):
        step(2, 3)
    cache.reset()
    with pytest.raises(ShapeError, match="3 sequences, but room for 2"):
        step(3, 1)
    cache = sbt.KVCache.for_model(models.decoder("llama", torch.float32), batch=1, length=6)
    with pytest.raises(ShapeError, match=r"in torch\.bfloat16"):
        step(1, 1)
