"""The kernel that stores keys and values; see `samebits.engines.triton.attention.store`."""

from __future__ import annotations

import pytest
import torch

from interpreter import INTERPRETED
from samebits import bits

pytest.importorskip("triton")
from samebits.engines.triton.attention.store import store

DEVICE = "cpu" if INTERPRETED else "cuda"


@pytest.mark.parametrize("rows", [1, 6, 300])
@pytest.mark.parametrize(("page", "d", "dv"), [(16, 16, 16), (48, 24, 40)])
def test_rows_go_to_their_slots(rows: int, page: int, d: int, dv: int) -> None:
    g = torch.Generator().manual_seed(rows)
    k, v = (torch.randn(rows, 2, n, generator=g).bfloat16().to(DEVICE) for n in (d, dv))
    pages = -(-rows // page) + 1
    cache = torch.full((pages, 2, page, d + dv), float("nan")).bfloat16().to(DEVICE)
    keys, values = cache.transpose(1, 2).split((d, dv), -1)
    slots = torch.randperm(pages * page, generator=g)[:rows].to(DEVICE)
    if rows > 1:
        slots[0] = -1
    want = cache.cpu().transpose(1, 2).flatten(0, 1).clone()
    kept = (slots >= 0).cpu()
    want[slots.cpu()[kept]] = torch.cat((k, v), -1).cpu()[kept]
    store(k, v, keys, values, slots)
    assert bits.equal(cache.cpu().transpose(1, 2).flatten(0, 1).contiguous(), want)
