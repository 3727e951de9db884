"""The rotary kernel has the CPU's bits for every layout: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from interpreter import INTERPRETED
from samebits import bits, ops

pytest.importorskip("triton")
from samebits.engines.triton.rows import rotary

DEVICE = "cpu" if INTERPRETED else "cuda"


@pytest.mark.parametrize("d", [2, 96, 128])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_layouts(interleaved: bool, full: bool, d: int) -> None:
    g = torch.Generator().manual_seed(d)
    x = torch.randn(2, 5, 7, d, generator=g).bfloat16()
    cos, sin = (torch.rand(50, d if full else d // 2, generator=g).bfloat16() for _ in range(2))
    at = torch.randint(0, 50, (2, 5), generator=g)
    want = ops.rotary(x, cos, sin, interleaved, positions=at)
    on = [t.to(DEVICE) for t in (x, cos, sin, at)]
    assert bits.equal(rotary.rotary(*on, interleaved).cpu(), want)
    heads_first = x.transpose(1, 2).to(DEVICE)
    factors = [f[at][:, None].expand(2, 7, 5, -1).to(DEVICE) for f in (cos, sin)]
    got = rotary.rotary(heads_first, factors[0], factors[1], None, interleaved)
    assert bits.equal(got.cpu(), want.transpose(1, 2))
    at[0, 0] = 50
    outside = rotary.rotary(*on[:3], at.to(DEVICE), interleaved)
    assert outside[0, 0].isnan().all()
    assert not outside[1].isnan().any()
