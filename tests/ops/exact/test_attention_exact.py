"""Exact attention against its contract, and against every way of cutting its keys."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from exact_samples import DTYPES, special, spread
from samebits import bits, ops
from samebits.errors import DTypeError, ShapeError
from samebits.ops.exact import engine
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


def test_scores_are_held_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of items and of rows, whatever the mask repeats."""
    q, k, v = (torch.randn(2, 3, h, s, 16) for h, s in ((4, 9), (2, 30), (2, 30)))
    masks = [torch.rand(9, 30) < 0.7, torch.randn(3, 1, 9, 30), torch.randn(2, 3, 4, 1, 30), None]
    module = import_module("samebits.ops.exact.attention")
    held: list[int] = []

    def product(x: torch.Tensor, w: torch.Tensor, *rest: Any) -> torch.Tensor:
        y = engine.product(x, w, *rest)
        held.append(y.numel() if w.shape[-2] == 30 else 0)  # keys: scores
        return y

    for mask in masks:
        monkeypatch.undo()
        want = ops.exact.attention(q, k, v, mask=mask, causal=True)
        monkeypatch.setattr(module, "product", product)
        for most in (100, 700):
            monkeypatch.setattr(module, "_SCORES", most)
            held.clear()
            assert bits.equal(ops.exact.attention(q, k, v, mask=mask, causal=True), want)
            assert 0 < max(held) <= most


def test_what_is_not_covered_is_refused() -> None:
    q, k, v = operands("fp32")
    with pytest.raises(ShapeError):
        ops.exact.attention(q, k, v[:, :, :5])
    with pytest.raises(ShapeError, match="mask"):
        ops.exact.attention(q, k, v, mask=torch.ones(7, 7, dtype=torch.bool))
    with pytest.raises(DTypeError):
        ops.exact.attention(q, k.bfloat16(), v)
    with pytest.raises(DTypeError, match="mask is on meta"):
        ops.exact.attention(q, k, v, mask=torch.ones(3, 40, dtype=torch.bool, device="meta"))
    with pytest.raises(DTypeError, match="takes tensors, not list"):
        ops.exact.attention(q, k, v, mask=[[True]])  # type: ignore[arg-type]
    largest = torch.finfo(torch.float32).max
    assert ops.exact.attention(q, k, v, scale=largest).shape[:-1] == q.shape[:-1]
    for scale in (float("nan"), float("inf"), -float("inf"), 2.0**128, -1e300):
        with pytest.raises(ShapeError, match="is not finite in fp32"):
            ops.exact.attention(q, k, v, scale=scale)
    third: Any = np.int64(2)
    rows = (ops.exact.attention(q, k, v, causal=True, q_start=start) for start in (third, 2))
    assert torch.equal(*rows)
    for start in (0.0, torch.tensor(0)):
        with pytest.raises(DTypeError, match="q_start is an integer"):
            ops.exact.attention(q, k, v, causal=True, q_start=start)  # type: ignore[arg-type]


def test_heads_of_no_dimension_see_all_keys_alike() -> None:
    q, k, v = operands("fp32")
    q, k = q[..., :0], k[..., :0]
    want = contract_of("attention", dtype="fp32", head_dim=64, device="exact").evaluate(q, k, v)
    assert bits.equal(ops.exact.attention(q, k, v), want)
