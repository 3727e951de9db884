"""How a step on a GPU is cut into calls, decided on the host."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm_engines import HAS_VLLM

pytestmark = pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")

#: Requests of a step as (new tokens, keys), and where its calls begin.
STEPS = {
    "decoding": ([(1, 70)] * 3, [0]),
    "new prompts": ([(300, 300), (2000, 2000)], [0]),
    "chunks": ([(300, 900), (20, 1020)], [0]),
    "decoding, prompts": ([(1, 70), (1, 9), (300, 300), (40, 40)], [0, 2]),
    "decoding, chunks": ([(1, 70), (1, 9), (5, 300), (40, 41)], [0, 2]),
    "few new rows stay with the chunk": ([(1, 70), (5, 300), (2047, 2047)], [0, 1]),
    "many have a call of their own": ([(1, 70), (5, 300), (8, 8), (2040, 2040)], [0, 1, 2]),
    "a chunk behind them": ([(1, 70), (4096, 4096), (5, 300)], [0, 1]),
    "no decoding": ([(5, 300), (4096, 4096)], [0, 1]),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_cut_into_calls(name: str) -> None:
    from samebits.integrations.vllm.attention_gpu import parts

    requests, begins = STEPS[name]
    new, keys = (torch.tensor(x, dtype=torch.int32) for x in zip(*requests, strict=True))
    offsets = torch.cat((new.new_zeros(1), new.cumsum(0, dtype=torch.int32)))
    common = SimpleNamespace(
        num_actual_tokens=int(offsets[-1]), num_reqs=len(requests), max_query_len=int(new.max()),
        query_start_loc=offsets, query_start_loc_cpu=offsets, seq_lens=keys,
        seq_lens_cpu_upper_bound=keys, block_table_tensor=torch.arange(len(requests))[:, None],
    )  # fmt: skip
    found = parts(common)
    assert [int(part.pages[0]) for part in found] == begins
    for part, i, j in zip(found, begins, [*begins[1:], len(requests)], strict=True):
        assert part.rows == slice(int(offsets[i]), int(offsets[j]))
        assert part.offsets.tolist() == (offsets[i : j + 1] - offsets[i]).tolist()
        assert part.lengths.tolist() == keys[i:j].tolist()
        assert len(part.pages) == j - i
        assert part.longest == max(new[i:j])
        assert part.fresh == (part.longest > 1 and torch.equal(new[i:j], keys[i:j]))
        assert (part.keys, part.total) == (max(keys[i:j]), sum(keys[i:j]))
