"""Pages are copied side by side as they are; see `samebits.engines.triton.attention.gather`."""

from __future__ import annotations

import pytest
import torch
from attention_kernel_cases import DEVICE, paged

from samebits import bits
from samebits.engines.triton.attention.gather import gathered


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
