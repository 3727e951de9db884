"""Norm and rotary of queries and keys in one launch have the bits of the kernels one by one."""

from __future__ import annotations

import pytest
import torch

from interpreter import INTERPRETED
from samebits import bits

pytest.importorskip("triton")
from samebits.engines.triton.rows import heads, norm, rotary
from samebits.engines.triton.rows.schedule import RowSchedule

DEVICE = "cpu" if INTERPRETED else "cuda"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("d", "q_heads", "k_heads"), [(128, 11, 3), (64, 2, 1), (8, 130, 70)])
@pytest.mark.parametrize("normed", [True, False])
def test_bits_of_the_kernels_one_by_one(
    dtype: torch.dtype, d: int, q_heads: int, k_heads: int, normed: bool
) -> None:
    g = torch.Generator().manual_seed(d)
    tokens = 3
    rows = torch.randn(tokens, (q_heads + 2 * k_heads) * d, generator=g)
    rows = (rows * torch.exp2(4 * torch.randn(tokens, 1, generator=g))).to(dtype).to(DEVICE)
    sizes = (q_heads * d, k_heads * d, k_heads * d)
    q, k = (x.unflatten(1, (-1, d)) for x in rows.split(sizes, 1)[:2])
    cos, sin = (torch.rand(9, d // 2, generator=g).to(dtype).to(DEVICE) for _ in range(2))
    at = torch.tensor([8, 0, 9 if normed else 3]).to(DEVICE)  # one outside
    weights = [torch.randn(d, generator=g).to(dtype).to(DEVICE) for _ in range(2)]
    used = weights if normed else (None, None)
    got = heads.heads(q, k, cos, sin, at, *used, 1e-6)
    for x, w, y in zip((q, k), used, got, strict=True):
        if w is not None:
            schedule = RowSchedule(rows=2, num_warps=1)
            x = norm.norm(x, None, w, None, 1e-6, schedule, centred=False)[0]
        want = rotary.rotary(x[None], cos, sin, at[None], False)[0]
        assert bits.equal(y.cpu(), want.cpu())
