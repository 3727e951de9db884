"""Pages are copied side by side as they are; see `samebits.engines.triton.attention.gather`."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attention_kernel_cases import DEVICE, paged
from msgspec.structs import replace

from samebits import bits
from samebits.engines.cuda.attention.schedule import PrefillSchedule
from samebits.engines.triton.attention import run
from samebits.engines.triton.attention.gather import gathered
from samebits.engines.triton.attention.schedule import AttentionSchedule


@pytest.mark.parametrize(("page", "d", "dv"), [(16, 16, 16), (48, 24, 16), (64, 16, 32)])
def test_keys_and_values_lie_side_by_side(page: int, d: int, dv: int) -> None:
    lens = [200, 0, 77, 1, *[3] * 130]  # more sequences than one load of lengths
    x = torch.randn(len(lens), 2, 200, d + dv, generator=torch.Generator().manual_seed(0))
    x = x.to(torch.bfloat16).to(DEVICE)
    cache, table = paged(x, page)
    keys, values = cache.split((d, dv), -1)  # of one row, as in vLLM's cache
    held = torch.tensor(lens, dtype=torch.int32, device=DEVICE)
    k, v, offsets = gathered(keys, values, table, held, sum(lens) + 5, 210)
    assert offsets.tolist() == [0, *torch.tensor(lens).cumsum(0).tolist()]
    want = torch.cat([x[b, :, :n].transpose(0, 1) for b, n in enumerate(lens)])
    assert bits.equal(k[: sum(lens)].cpu(), want[..., :d].cpu())
    assert bits.equal(v[: sum(lens)].cpu(), want[..., d:].cpu())


@pytest.mark.parametrize(
    ("rows", "keys", "worth"),
    [(256, 1023, False), (257, 300, True), (64, 1024, True), (63, 9000, False), (197, 1023, False),
     (197, 40000, True), (384, 1 << 17, True), (384, 1 + (1 << 17), False)],
)  # fmt: skip
def test_chunks_with_rows_enough_are_worth_a_copy(rows: int, keys: int, worth: bool) -> None:
    """32 query heads, 8 KV heads of 128: 2,048 rows of heads behind many keys, or 96 tiles."""

    def on_a_gpu(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Any:
        return SimpleNamespace(size=shape.__getitem__, is_cuda=True, dtype=dtype)

    q, pages = on_a_gpu(rows, 32, 128), on_a_gpu(900, 64, 8, 128)
    schedule = AttentionSchedule(block_m=64, prefill=PrefillSchedule())
    empty = torch.empty(0)
    sequences = run.Sequences(1, rows, keys, empty, kv_lens=empty, table=empty, total_kv=keys)
    tiles = -(-rows // 128) * 32

    def asked(schedule: AttentionSchedule, pages: Any, sequences: run.Sequences) -> bool:
        return run._worth_copying(schedule, q, pages, pages, sequences, tiles)

    assert asked(schedule, pages, sequences) == worth
    fp8 = on_a_gpu(900, 64, 8, 128, dtype=torch.float8_e4m3fn)
    assert not asked(schedule, fp8, sequences)
    assert not asked(replace(schedule, prefill=None), pages, sequences)
    assert not asked(schedule, pages, dataclasses.replace(sequences, total_kv=None))
    assert not asked(schedule, pages, dataclasses.replace(sequences, longest_q=1))
