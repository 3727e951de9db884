"""Rotary embedding has the bits of the usual eager form, for any layout and position."""

from __future__ import annotations

import pytest
import torch

from samebits import bits
from samebits.errors import DTypeError, ShapeError
from samebits.ops.norm import rms_norm
from samebits.ops.rotary import rotary, rotary_qk

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def factors(t: int, d: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.arange(t)[:, None] * 10000.0 ** (-torch.arange(d // 2) * 2 / d)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def eager(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [2, 6, 32, 64, 96, 128])
def test_equals_the_eager_form(isa: str, dtype: torch.dtype, d: int) -> None:
    x = torch.randn(2, 3, 11, d).to(dtype)
    cos, sin = factors(11, d, dtype)
    full = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    want = eager(x, *full)
    assert bits.equal(rotary(x, *full), want)
    assert bits.equal(rotary(x, cos, sin), want)
    per_batch = (f.expand(2, 11, d)[:, None] for f in full)  # transformers' shape
    assert bits.equal(rotary(x, *per_batch), want)
    strided = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert bits.equal(rotary(strided, cos, sin), want)
    assert bits.equal(rotary(x[1, :, 4], cos[4], sin[4]), want[1, :, 4])
    deep = x[None, None]
    assert bits.equal(rotary(deep, cos, sin)[0, 0], want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_interleaved_pairs(isa: str, dtype: torch.dtype) -> None:
    x = torch.randn(5, 7, 24).to(dtype)
    cos, sin = factors(7, 24, dtype)
    halves = torch.cat([x[..., ::2], x[..., 1::2]], -1)
    want = rotary(halves, cos, sin)
    want = torch.stack(want.chunk(2, -1), -1).flatten(-2)
    assert bits.equal(rotary(x, cos, sin, interleaved=True), want)
    full = (f.repeat_interleave(2, -1) for f in (cos, sin))
    assert bits.equal(rotary(x, *full, interleaved=True), want)


def test_empty_and_wrong_arguments() -> None:
    cos, sin = factors(4, 8, torch.float32)
    assert rotary(torch.empty(0, 4, 8), cos, sin).shape == (0, 4, 8)
    for x, c in ((torch.ones(4, 7), cos), (torch.ones(()), cos), (torch.ones(4, 8), cos[:3]),
                 (torch.ones(4, 8), cos[:, :3]), (torch.ones(8), cos)):  # fmt: skip
        with pytest.raises(ShapeError):
            rotary(x, c, sin)
    with pytest.raises(DTypeError, match="one dtype"):
        rotary(torch.ones(4, 8).double(), cos, sin)
    with pytest.raises(DTypeError, match="one dtype"):
        rotary(torch.ones(4, 8).half(), cos, sin)


@pytest.mark.parametrize("interleaved", [False, True])
def test_positions_pick_rows_of_the_caches(interleaved: bool) -> None:
    x = torch.randn(2, 5, 3, 32).bfloat16()
    cos, sin = factors(40, 32, torch.bfloat16)
    at = torch.randint(0, 40, (2, 5))
    picked = (f[at][:, :, None] for f in (cos, sin))
    want = rotary(x, *picked, interleaved)
    for positions in (at, at.int()):
        assert bits.equal(rotary(x, cos, sin, interleaved, positions=positions), want)
    for wrong in (at[:1], at + 40, at - 40):
        with pytest.raises(ShapeError):
            rotary(x, cos, sin, interleaved, positions=wrong)
    with pytest.raises(ShapeError, match="caches"):
        rotary(x, cos[:, :3], sin[:, :3], positions=at)
    with pytest.raises(DTypeError, match="int32"):
        rotary(x, cos, sin, positions=at.float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("d", [128, 96])
def test_queries_and_keys_together(dtype: torch.dtype, normed: bool, d: int) -> None:
    """In one call, with norms: the bits of the operations one after the other."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = torch.randn(7, 8 * d).to(dtype).to(device)
    q, k = (x.unflatten(1, (-1, d)) for x in rows.split((5 * d, 3 * d), 1))
    cos, sin = (f.to(device) for f in factors(30, d, dtype))
    at = torch.randint(0, 30, (7,)).to(device)
    weights = [torch.randn(d).to(dtype).to(device) for _ in range(2)] if normed else [None, None]
    got = rotary_qk(q, k, cos, sin, at, q_weight=weights[0], k_weight=weights[1], eps=1e-5)
    for x, w, y in zip((q, k), weights, got, strict=True):
        if w is not None:
            x = rms_norm(x, (d,), w, 1e-5)
        assert bits.equal(y, rotary(x, cos, sin, positions=at))
    with pytest.raises(ShapeError, match="both norms"):
        rotary_qk(q, k, cos, sin, at, q_weight=torch.ones(d, dtype=dtype))
