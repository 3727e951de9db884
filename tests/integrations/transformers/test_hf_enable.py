"""Turning it on and off: what is set is put back, what cannot be kept is refused."""

from __future__ import annotations

import copy
import importlib
import sys
from typing import Any

import pytest
import small_models as models
import torch
from transformers import AttentionInterface, AttentionMaskInterface, GenerationMixin

import samebits
import samebits.integrations.transformers as sbt
from samebits.errors import SamebitsError, SwitchError, UncoveredError, UncoveredWarning
from samebits.integrations.transformers import hooks


def test_a_model_gets_back_what_it_had(switch: None) -> None:
    model = models.decoder("mixtral")
    before = (model.config._attn_implementation, model.config._experts_implementation)
    assert sbt.enable(sbt.enable(model)) is model
    assert model.config._attn_implementation == model.config._experts_implementation == "samebits"
    sbt.disable(model)
    sbt.disable(model)
    assert (model.config._attn_implementation, model.config._experts_implementation) == before


def test_it_turns_the_switch_on_and_needs_it() -> None:
    model = models.decoder("llama")
    ids = torch.tensor([[3, 4, 5]])
    try:
        sbt.enable(model)
        assert samebits.status().on
        model(ids)
    finally:
        samebits.disable()
    with pytest.raises(SwitchError, match="while the switch is off"):
        model(ids)


def test_the_name_works_at_construction(switch: None) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(models.config("llama"), attn_implementation="samebits")
    assert hooks.ours(model)
    model.eval()(torch.tensor([[3, 4, 5]]))


def test_everything_registered_can_be_taken_back() -> None:
    tables = (AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping)
    hooks.remove()
    before = [dict(table) for table in tables]
    method = GenerationMixin._prepare_generation_config
    try:
        hooks.install()
        hooks.install_for_all()
        assert all("samebits" in table for table in tables)
        assert GenerationMixin._prepare_generation_config is not method
        hooks.remove()
        assert [dict(table) for table in tables] == before
        assert GenerationMixin._prepare_generation_config is method
    finally:
        hooks.install()


@torch.no_grad()
def test_for_every_model_at_once(switch: None) -> None:
    from small_models import pad, positions, prompts

    model, rows = models.decoder("llama", torch.float32), prompts([5, 17])
    batch = pad(rows, "left")
    mine = sbt.enable(copy.deepcopy(model))
    expected = mine(torch.tensor([rows[0]])).logits[0]
    try:
        sbt.enable()
        out = model(**batch, position_ids=positions(batch["attention_mask"])).logits
        assert torch.equal(out[0, -5:], expected)
        assert model.config._attn_implementation == "sdpa"
        model.set_attn_implementation("eager")
        with pytest.raises(UncoveredError, match='attn_implementation="eager"'):
            model(torch.tensor([rows[0]]))
    finally:
        sbt.disable()
    model(torch.tensor([rows[0]]))


def test_reasons_are_given_all_together(switch: None) -> None:
    model: Any = models.decoder("llama")
    assert sbt.reasons_against(model) == []
    assert "PreTrainedModel" in sbt.reasons_against(torch.nn.Linear(2, 2))[0]
    model.hf_quantizer, model._use_kernels = object(), True
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(UncoveredError, match=r"quantised.*hub.*linear_attention"):
        sbt.enable(model)
    assert model.config._attn_implementation == "sdpa"
    with pytest.warns(UncoveredWarning, match="quantised"):
        sbt.enable(model, policy="warn")


def test_dropout_is_refused(switch: None) -> None:
    configured = models.config("llama")
    configured.attention_dropout = 0.1
    from transformers import AutoModelForCausalLM

    model = sbt.enable(AutoModelForCausalLM.from_config(configured)).train()
    with pytest.raises(UncoveredError, match="dropout"):
        model(torch.tensor([[3, 4, 5]]))


@torch.no_grad()
def test_masks_of_a_callers_own_are_taken(switch: None) -> None:
    model = sbt.enable(models.decoder("qwen3"))
    ids = torch.tensor([[3, 4, 5, 6]])
    expected = model(ids).logits
    causal = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    assert torch.equal(model(ids, attention_mask=causal).logits, expected)
    lowest = torch.finfo(torch.bfloat16).min
    added = torch.zeros(causal.shape, dtype=torch.bfloat16).masked_fill(~causal, lowest)
    assert torch.isfinite(model(ids, attention_mask=added).logits).all()


@torch.no_grad()
def test_t5_position_biases_are_added(switch: None) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {
        "vocab_size": 97,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
    }
    torch.manual_seed(3)
    model = T5ForConditionalGeneration(T5Config(**sizes)).eval()
    if sbt.reasons_against(model):
        pytest.skip("this release of transformers computes T5's attention by itself")
    rows = models.prompts([4, 9])
    start = torch.zeros(1, 1, dtype=torch.long)
    reference = model(torch.tensor([rows[0]]), decoder_input_ids=start).logits[0]
    sbt.enable(model)
    alone = model(torch.tensor([rows[0]]), decoder_input_ids=start).logits[0]
    batch = models.pad(rows, "right")
    together = model(**batch, decoder_input_ids=start.expand(2, 1)).logits[0]
    torch.testing.assert_close(alone, reference, rtol=1e-4, atol=1e-4)
    assert torch.equal(together, alone)


def test_another_release_of_transformers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = "transformers.generation.continuous_batching.model_runner"
    monkeypatch.setitem(sys.modules, runner, None)
    with pytest.raises(SamebitsError, match=r"cannot be used with samebits: use releases 5\.17"):
        importlib.reload(hooks)
    monkeypatch.delattr(GenerationMixin, "_get_logits_processor")
    with pytest.raises(SamebitsError, match=r"has no GenerationMixin\._get_logits_processor"):
        hooks._wrap(GenerationMixin, "_get_logits_processor", lambda *_: None)
