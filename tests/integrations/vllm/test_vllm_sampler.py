"""The plugin's sampler: rows that ask for other things than their neighbours."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from vllm_engines import GREEDY, HAS_VLLM, SEEDED, Engine, prompt, request

from samebits import ops
from samebits.integrations.vllm import layers, sampler


class Tensors(NamedTuple):
    """As vLLM's ``LogprobsTensors``."""

    logprob_token_ids: torch.Tensor
    logprobs: torch.Tensor
    selected_token_ranks: torch.Tensor


def _gather(logprobs: torch.Tensor, most: int, token_ids: torch.Tensor) -> Tensors:
    best, ids = ops.topk(logprobs, most)
    own = token_ids[:, None]
    scores = torch.cat((logprobs.gather(1, own), best), 1)
    return Tensors(torch.cat((own, ids), 1).to(torch.int32), scores, torch.zeros(len(own)))


@pytest.mark.parametrize("most", [0, 2, 5])
def test_a_row_that_names_ids_leaves_the_others_their_likeliest_tokens(most: int) -> None:
    logprobs = torch.randn(3, 20, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    sampled, named = torch.tensor([3, 4, 5]), sampler.Named({1: [7, 19, 0]})
    named.most = most
    gatherer: Any = SimpleNamespace(gather_logprobs=_gather)
    found = sampler._named_logprobs(gatherer, logprobs, named, sampled)
    alone = _gather(logprobs, most, sampled)
    for row in (0, 2):
        assert torch.equal(found.logprob_token_ids[row, : most + 1], alone.logprob_token_ids[row])
        assert torch.equal(found.logprobs[row, : most + 1], alone.logprobs[row])
    assert found.logprob_token_ids[1, :4].tolist() == [4, 7, 19, 0]
    assert torch.equal(found.logprobs[1, :4], logprobs[1, [4, 7, 19, 0]])


def test_processors_see_logits_over_the_temperature_and_greedy_rows_do_not_need_them() -> None:
    seen = []

    class Flat:
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            seen.append(logits.clone())
            return torch.full_like(logits, 1.0)

    logits = torch.tensor([[1.0, 5.0, 3.0], [2.0, 8.0, 4.0]])
    whole = torch.tensor([3, 3])
    heat = torch.tensor([0.0, 2.0])
    options = sampler.Parameters(whole, whole, heat, None, None, None)
    drawn = sampler.processed(logits, options, [Flat()])
    assert torch.equal(seen[0], torch.tensor([[1.0, 5.0, 3.0], [1.0, 4.0, 2.0]]))
    flat = ops.sample(torch.ones(1, 3), seeds=3, positions=3).tokens
    assert drawn.tolist() == [1, int(flat)]
    plain = sampler.drawn(logits, options)
    nothing: Any = SimpleNamespace(apply=lambda x: x)
    assert torch.equal(sampler.processed(logits, options, [nothing]), plain)


def test_weights_that_are_loaded_later_are_multiplied_with() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(4, 4, bias=False)
            self.given_up = torch.nn.Linear(4, 4, bias=False)

        def load_weights(self, weights: Any) -> int:
            for name, value in weights:
                self.get_parameter(name).data.copy_(value)
            return 1

    model = Model()
    for layer in (model.head, model.given_up):
        layer.samebits_packed = ops.pack_weight(layer.weight.data)
    model.given_up.weight.data = torch.empty(0)
    kept = model.given_up.samebits_packed
    layers.follow(model)
    new = torch.arange(16.0).view(4, 4)
    assert model.load_weights([("head.weight", new)]) == 1
    x = torch.eye(4)
    assert torch.equal(ops.linear(x, model.head.samebits_packed), new.T)
    assert model.given_up.samebits_packed is kept


@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")
def test_a_neighbour_that_names_ids_changes_no_logprob(engine: Engine, models: Any) -> None:
    rng = random.Random(11)
    needles = [request(prompt(rng, 50), options | {"logprobs": 3}) for options in (GREEDY, SEEDED)]
    others = [
        request(prompt(rng, 9), GREEDY | {"logprobs": None, "logprob_token_ids": [5, 9, 300, 2, 8]})
        for _ in range(2)
    ]
    answers = engine.run(
        models("qwen3"), [[needles[0]], [needles[1]], [*others, *needles, *others]]
    )["answers"]  # fmt: skip
    assert [answers[0][0], answers[1][0]] == answers[2][2:4]
    assert len(answers[0][0]["likeliest"][0]) >= 3
