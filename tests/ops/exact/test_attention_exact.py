"""Exact attention against its contract, and against every way of cutting its keys."""

from __future__ import annotations

import pytest
import torch

from exact_samples import DTYPES, special, spread
from samebits import bits, ops
from samebits.errors import DTypeError, ShapeError
from samebits.plan import contract_of


def operands(name: str, octaves: int = 1, length: int = 3, keys: int = 40) -> list[torch.Tensor]:
    shapes = ((2, 4, length, 16), (2, 2, keys, 16), (2, 2, keys, 8))
    return [spread(*s, dtype=DTYPES[name], octaves=octaves, seed=i) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("name", DTYPES)
def test_bits_of_the_contract(name: str) -> None:
    contract = contract_of("attention", dtype=name, device="exact")
    q, k, v = operands(name)
    mask = torch.rand(2, 1, 3, 40) < 0.7
    mask[0, :, 1] = False  # a row that sees nothing
    bias = torch.randn(4, 3, 40)
    for options in ({}, {"causal": True}, {"causal": True, "q_start": 5}, {"scale": 0.3}):
        assert bits.equal(
            ops.exact.attention(q, k, v, **options), contract.evaluate(q, k, v, **options)
        )
    for m in (mask, bias):
        want = contract.evaluate(q, k, v, mask=m.numpy())
        assert bits.equal(ops.exact.attention(q, k, v, mask=m), want)


def test_inf_and_nan_in_keys_and_values() -> None:
    contract = contract_of("attention", dtype="fp32", device="exact")
    q, k, v = operands("fp32")
    k[0, 0], v = special(k[0, 0], 3, 0.01), special(v, 4, 0.06)
    for causal in (False, True):
        want = contract.evaluate(q, k, v, causal=causal, q_start=10)
        got = ops.exact.attention(q, k, v, causal=causal, q_start=10)
        assert bits.equal(got, want)
        assert want.isnan().any() and want.isfinite().any()


def test_no_order_cut_or_padding_of_keys_shows() -> None:
    q, k, v = operands("bf16", keys=200)
    want = ops.exact.attention(q, k, v)
    p = torch.randperm(200)
    assert bits.equal(ops.exact.attention(q, k[:, :, p], v[:, :, p]), want)
    assert bits.equal(ops.exact.attention(q[:1, :, 1:2], k[:1], v[:1]), want[:1, :, 1:2])
    bad = torch.full_like(k[:, :, :30], torch.nan)
    seen = torch.arange(230) < 200
    got = ops.exact.attention(q, torch.cat([k, bad], 2), torch.cat([v, bad[..., :8]], 2), mask=seen)
    assert bits.equal(got, want)
    assert bits.equal(ops.exact.attention(q, k[:, :, :0], v[:, :, :0]), torch.zeros_like(want))


def test_what_is_not_covered_is_refused() -> None:
    q, k, v = operands("fp32")
    with pytest.raises(ShapeError):
        ops.exact.attention(q, k, v[:, :, :5])
    with pytest.raises(ShapeError, match="mask"):
        ops.exact.attention(q, k, v, mask=torch.ones(7, 7, dtype=torch.bool))
    with pytest.raises(DTypeError):
        ops.exact.attention(q, k.bfloat16(), v)
