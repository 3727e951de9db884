"""Pages are copied side by side as they are; see `samebits.engines.triton.attention.gather`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from attention_kernel_cases import DEVICE, paged
from msgspec.structs import replace

from samebits import bits
from samebits.engines.cuda.attention.schedule import PrefillSchedule
from samebits.engines.triton.attention import hopper, run
from samebits.engines.triton.attention.gather import gathered
from samebits.engines.triton.attention.schedule import AttentionSchedule
from samebits.plan import contract_of


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


class OnAGpu:
    """A tensor that says it is on a GPU; `padding`: numbers between its rows."""

    is_cuda = True

    def __init__(self, *shape: int, dtype: torch.dtype = torch.bfloat16, padding: int = 0) -> None:
        self.on_cpu = torch.empty(*shape[:-1], shape[-1] + padding, dtype=dtype)[..., : shape[-1]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.on_cpu, name)


@pytest.mark.parametrize(
    ("rows", "keys", "worth"),
    [(256, 1023, False), (257, 300, True), (64, 1024, True), (63, 9000, False), (197, 1023, False),
     (197, 40000, True), (384, 1 << 17, True), (384, 1 + (1 << 17), False)],
)  # fmt: skip
def test_chunks_with_rows_enough_are_worth_a_copy(rows: int, keys: int, worth: bool) -> None:
    """32 query heads, 8 KV heads of 128: 2,048 rows of heads behind many keys, or 96 tiles."""

    q, pages = OnAGpu(rows, 32, 128), OnAGpu(900, 64, 8, 128)
    schedule = AttentionSchedule(block_m=64, prefill=PrefillSchedule())
    offsets = torch.empty(2, dtype=torch.int32)
    here = {
        "schedule": schedule, "q": q, "k": pages, "v": pages, "options": run.Options(1.0),
        "contract": contract_of("attention", head_dim=128, dtype="bf16", device="sm_90"),
        "s": run.Sequences(1, rows, keys, offsets, kv_lens=offsets, table=offsets, total_kv=keys),
        "tiles": -(-rows // 128) * 32,
    }  # fmt: skip

    def asked(**change: Any) -> bool:
        return hopper.worth_copying(**here | change)

    def other(name: str, **change: Any) -> dict[str, Any]:
        return {name: dataclasses.replace(here[name], **change)}

    assert asked() == worth
    assert asked(k=OnAGpu(900, 64, 8, 128, padding=1)) == worth  # copies are dense
    assert not asked(k=OnAGpu(900, 64, 8, 128, dtype=torch.float8_e4m3fn))
    assert not asked(schedule=replace(schedule, prefill=None))
    assert not asked(**other("s", total_kv=None)) and not asked(**other("s", total_kv=0))
    assert not asked(**other("s", longest_q=1))
    # The prefill kernel would not take the copies.
    assert not asked(**other("options", softcap=30.0)) and not asked(**other("options", scale=-1.0))
    assert not asked(**other("s", cu_q=offsets.long())) and not asked(
        **other("s", starts=offsets.long())
    )
    assert not asked(v=OnAGpu(900, 64, 8, 64)) and not asked(q=OnAGpu(rows, 32, 128, padding=1))
