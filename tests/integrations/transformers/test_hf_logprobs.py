"""Training-inference agreement: what the engine recorded is what a trainer computes."""

from __future__ import annotations

import pytest
import small_models as models
import torch
from test_hf_batching import serve

import samebits.integrations.transformers as sbt
from samebits.bits import equal as same_bits
from samebits.ops import token_logprobs

LENGTHS = (5, 23, 14, 1)


# transformers does not tell gpt_oss's masks which sequences a row holds.
@pytest.mark.parametrize(
    ("kind", "sample"),
    [("llama", False), ("llama", True), ("gemma2", True), ("mixtral", False), ("gpt_oss", False)],
)
def test_a_trainer_has_the_engines_logarithms(kind: str, sample: bool, switch: None) -> None:
    model = sbt.enable(models.decoder(kind, torch.float32))
    rows = models.prompts(LENGTHS)
    engine = serve(model, rows, sample=sample, top_k=0)
    full = [[*row, *engine[tuple(row)].generated_tokens] for row in rows]
    recorded = [torch.tensor(engine[tuple(row)].logprobs) for row in rows]
    model.requires_grad_(True)
    heat = 0.7 if sample else 1.0
    for side in ("left", "right"):
        batch = models.pad(full, side)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        found = token_logprobs(model, ids, mask=mask, temperature=heat)
        for i, text in enumerate(full):
            own = found[i][mask[i, 1:].bool() & mask[i, :-1].bool()]
            new = own[len(text) - 1 - len(recorded[i]) :]
            assert new.requires_grad and same_bits(new.detach(), recorded[i]), (side, i)
            assert same_bits((new.detach() - recorded[i]).exp(), torch.ones(len(new)))
    ids = torch.tensor([[token for text in full for token in text]])
    positions = torch.cat([torch.arange(len(text)) for text in full])[None]
    found = token_logprobs(model, ids, positions=positions, temperature=heat)[0]
    end = 0
    for text, old in zip(full, recorded, strict=True):
        end += len(text)
        assert same_bits(found[end - 1 - len(old) : end - 1].detach(), old)
    found.sum().backward()
    gradients = [p.grad for p in model.parameters()]
    assert all(g is not None and torch.isfinite(g).all() for g in gradients)
