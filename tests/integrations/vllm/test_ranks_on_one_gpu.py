"""One, two and four ranks of vLLM give the same tokens and bits, on a GPU that they share."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from vllm_engines import (
    GREEDY,
    HAS_VLLM,
    PENALISED,
    SEEDED,
    Engine,
    Request,
    bits,
    company,
    prompt,
    request,
)

pytestmark = [
    pytest.mark.skipif(not HAS_VLLM, reason="needs vllm"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
KINDS = [("qwen3", 4), ("qwen3_moe", 4), ("qwen2_moe", 2)]


def answers(
    engine: Engine, model: Any, ranks: int, batches: list[list[Request]], asked: bool = True
) -> list[Any]:
    """Of each rank, in captured graphs."""
    options = {"additional_config": {"samebits": {"tp_invariant": True, "warm_up": False}}}
    said = engine.on_one_gpu(
        model, batches, ranks, asked=asked, enforce_eager=False, max_num_seqs=8,
        enable_expert_parallel="moe" in model.name, **(options if asked else {}),
    )  # fmt: skip
    return [[[bits(a) for a in batch] for batch in of_rank["answers"]] for of_rank in said]


@pytest.mark.parametrize(("kind", "kv_heads"), KINDS)
def test_ranks_that_share_a_gpu_give_the_bits_of_one(
    engine: Engine, models: Any, kind: str, kv_heads: int
) -> None:
    """Of two KV heads four ranks hold each twice; of four, each rank holds its own."""
    model = models(kind, hidden_size=512, num_attention_heads=8, num_key_value_heads=kv_heads)
    rng = random.Random(8)
    greedy, seeded = (request(prompt(rng, 100), options) for options in (GREEDY, SEEDED))
    crowd = [*company(rng, greedy, 5, (GREEDY, SEEDED, PENALISED)), seeded]
    batches = [[greedy], [seeded], crowd]
    (one,) = answers(engine, model, 1, batches)
    assert one[0][0] == one[2][2] and one[1][0] == one[2][-1]
    for ranks in (2, 4):
        assert answers(engine, model, ranks, batches) == [one] * ranks


def test_stock_ranks_do_not(engine: Engine, models: Any) -> None:
    model = models("qwen3", hidden_size=512, num_attention_heads=8, num_key_value_heads=4)
    batches = [[request(prompt(random.Random(8), 100), GREEDY)]]
    one, two = (answers(engine, model, ranks, batches, asked=False) for ranks in (1, 2))
    assert one[0] != two[0]
