"""The kernels give the bits of reference.py, and the reference computes attention."""

from __future__ import annotations

import math

import pytest
import torch
from attention_cases import DTYPES, expected, qkv, relayout
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits import bits
from samebits.engines import cpu
from samebits.ops.attention import attention

ISAS = cpu.isas()


def same_everywhere(q, k, v, **options) -> None:  # type: ignore[no-untyped-def]
    want, want_lse = expected(q, k, v, **options)
    before = cpu.isa()
    try:
        for isa in ISAS:
            cpu.set_isa(isa)
            got, lse = attention(q, k, v, return_lse=True, **options)
            assert bits.equal(got, want), (isa, bits.count_different(got, want))
            assert bits.equal(lse, want_lse), isa
    finally:
        cpu.set_isa(before)


@given(st.data())
@settings(max_examples=60)
def test_engine_equals_reference(data: st.DataObject) -> None:
    draw = data.draw
    dtype = draw(st.sampled_from(list(DTYPES)))
    batch, kv_heads = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3, 5, 9]))
    q_len = draw(st.sampled_from([1, 2, 3, 9, 18, 33]))
    kv_len = draw(st.sampled_from([1, 2, 15, 16, 17, 63, 65, 130, 511, 512, 513, 600, 1030]))
    d, dv = draw(st.sampled_from([1, 3, 16, 20])), draw(st.sampled_from([1, 4, 8, 13, 16, 28]))
    q, k, v = qkv(
        draw(st.integers(0, 10**6)), batch, heads, kv_heads, q_len, kv_len, d, dv, dtype,
        draw(st.sampled_from([0.3, 1.0, 4.0])),
    )  # fmt: skip
    q, k, v = (relayout(x, draw(st.integers(0, 3))) for x in (q, k, v))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    mask = None
    shape = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])),
             draw(st.sampled_from([1, q_len])), kv_len)  # fmt: skip
    match draw(st.sampled_from(["none", "none", "bool", "additive", "padding"])):
        case "bool":
            mask = torch.rand(shape, generator=g) < draw(st.sampled_from([0.05, 0.5, 0.97]))
        case "additive":
            mask = torch.randn(shape, generator=g)
            mask[torch.rand(shape, generator=g) < 0.3] = -math.inf
            mask[torch.rand(shape, generator=g) < 0.1] = torch.finfo(dtype).min
            mask = mask.to(dtype)
        case "padding":
            pad = draw(st.integers(0, kv_len))
            mask = (torch.arange(kv_len) >= pad)[None, None, None]
    sinks = torch.randn(heads, generator=g) * 3 if draw(st.booleans()) else None
    if sinks is not None and draw(st.booleans()):
        sinks[0] = -math.inf
    same_everywhere(
        q, k, v,
        causal=draw(st.booleans()),
        q_start=draw(st.sampled_from([0, kv_len - q_len, kv_len // 2, 3, -2])),
        window=draw(st.sampled_from([None, None, 1, 7, 100, 530])),
        softcap=draw(st.sampled_from([None, None, 2.0, 30.0])),
        scale=draw(st.sampled_from([None, 1.0, -0.7, 0.0])),
        mask=mask, sinks=sinks,
    )  # fmt: skip


@pytest.mark.parametrize("d", [24, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("q_len", [1, 40])
def test_head_dims(d: int, q_len: int) -> None:
    q, k, v = qkv(d, 1, 2, 1, q_len, 70, d, 128 if d == 192 else d)
    same_everywhere(q, k, v, causal=True, q_start=70 - q_len)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("q_len", [1, 20])
def test_special_values(dtype: torch.dtype, q_len: int) -> None:
    """Inf, NaN, -0, subnormals and overflowing scores have the documented results."""
    special = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 1e-40, -1e-7, 3e38, -3e38])
    for seed in range(12):
        q, k, v = qkv(seed, 1, 2, 2, q_len, 40, 8, 8, dtype)
        g = torch.Generator().manual_seed(seed)
        for x in (q, k, v)[seed % 3 :]:
            at = torch.randint(0, x.numel(), (3,), generator=g)
            pick = torch.randint(0, len(special), (3,), generator=g)
            x.view(-1)[at] = special[pick].to(dtype)
        same_everywhere(q, k, v)
        same_everywhere(q, k, v, causal=True, q_start=40 - q_len, sinks=torch.randn(2, generator=g))


def test_underflow_to_minus_zero_is_kept() -> None:
    """A masked key leaves an accumulator alone even where adding +0 would turn -0 into +0."""
    q, k = torch.zeros(1, 1, 20, 4), torch.zeros(1, 1, 20, 4)
    v = torch.full((1, 1, 20, 4), -1e-45)
    q[..., 0], k[0, 0, 1:, 0] = 40.0, -3.0
    got = attention(q, k, v, causal=True)
    assert isinstance(got, torch.Tensor)
    want, _ = expected(q, k, v, causal=True)
    assert bits.equal(got, want)
    same_everywhere(q, k, v, causal=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_accuracy(dtype: torch.dtype) -> None:
    """Against fp64: at most twice as far away as stock PyTorch."""
    q, k, v = qkv(3, 2, 4, 2, 200, 1100, 64, 64, dtype)
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), enable_gqa=True
    )
    stock = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    got = attention(q, k, v)
    assert isinstance(got, torch.Tensor)
    error, stock_error = (float((x - exact).norm() / exact.norm()) for x in (got, stock))
    assert error <= 2 * stock_error
