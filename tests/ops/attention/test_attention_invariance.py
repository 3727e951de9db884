"""A row's bits depend on the row and the keys it sees. Each test shows first what stock does."""

from __future__ import annotations

import pytest
import torch
from attention_cases import DTYPES, qkv, relayout, stock

from samebits import bits
from samebits.ops.attention import attention

POISON = [float("nan"), float("inf"), -float("inf"), 1e30]


def rows(*args, **options) -> torch.Tensor:  # type: ignore[no-untyped-def]
    out = attention(*args, **options)
    assert isinstance(out, torch.Tensor)
    return out


def test_stock_fails() -> None:
    """PyTorch's fp32 attention: a decode row is not the row of the prefill (C3)."""
    q, k, v = qkv(0, 1, 4, 4, 700, 700, 64)
    full = stock(q, k, v, is_causal=True)
    assert any(
        not bits.equal(stock(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1]),
                       full[:, :, t : t + 1])
        for t in (5, 100, 511, 650)
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (8, 1), (10, 1)])
def test_decode_every_step(dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    """Step t from the cache is row t of the whole prefill, past two leaf edges (B2, C3)."""
    n = 1100
    q, k, v = qkv(1, 1, heads, kv_heads, n, n, 16, 24, dtype)
    full = rows(q, k, v, causal=True)
    for t in range(n):
        step = rows(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1])
        assert bits.equal(step, full[:, :, t : t + 1]), t


@pytest.mark.parametrize("size", [1, 2, 16, 17, 33, 512, 600])
@pytest.mark.parametrize("options", [{}, {"window": 100}, {"softcap": 20.0}])
def test_chunked_prefill(size: int, options: dict[str, object]) -> None:
    """Cutting the prompt anywhere changes nothing (C1, C4, D1, D3)."""
    n = 1200 if size > 2 else 560
    q, k, v = qkv(2, 1, 6, 2, n, n)
    full = rows(q, k, v, causal=True, **options)
    for at in range(0, n, size):
        end = min(at + size, n)
        chunk = rows(
            q[:, :, at:end], k[:, :, :end], v[:, :, :end], causal=True, q_start=at, **options
        )
        assert bits.equal(chunk, full[:, :, at:end]), at


@pytest.mark.parametrize("width", [1, 2, 3, 5, 10])
def test_draft_verification(width: int) -> None:
    """Rows verified together are the rows decoded one by one (R1, R2)."""
    q, k, v = qkv(3, 1, 8, 2, 530, 530)
    full = rows(q, k, v, causal=True)
    for at in (0, 31, 505, 520):
        end = at + width
        got = rows(q[:, :, at:end], k[:, :, :end], v[:, :, :end], causal=True, q_start=at)
        assert bits.equal(got, full[:, :, at:end])


@pytest.mark.parametrize("pad", [1, 7, 32, 100, 513])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("poison", POISON)
def test_padding(pad: int, side: str, additive: bool, poison: float) -> None:
    """Masked padding on either side is absent, whatever it holds (E1, U1)."""
    n = 540
    q, k, v = qkv(4, 1, 4, 2, n, n)
    full = rows(q, k, v, causal=True)
    ends = (pad, 0) if side == "left" else (0, pad)
    pq, pk, pv = (torch.nn.functional.pad(x, (0, 0, *ends), value=poison) for x in (q, k, v))
    real = torch.nn.functional.pad(torch.ones(n, dtype=torch.bool), ends)
    mask = torch.tril(torch.ones(n + pad, n + pad, dtype=torch.bool)) & real
    if additive:
        lowest = torch.finfo(torch.float32).min if pad % 2 else -torch.inf
        mask = torch.zeros(mask.shape).masked_fill(~mask, lowest)
    got = rows(pq, pk, pv, mask=mask[None, None])
    assert bits.equal(got[:, :, real], full)
    padding_rows = got[:, :, : pad if side == "left" else 0]
    assert bits.equal(padding_rows, torch.zeros_like(padding_rows))  # they see no key: +0


@pytest.mark.parametrize("poison", POISON)
def test_masked_keys_may_hold_anything(poison: float) -> None:
    """Random masks over poisoned keys equal the keys that are left, alone (U1)."""
    g = torch.Generator().manual_seed(5)
    q, k, v = qkv(5, 1, 4, 2, 12, 1300)
    for density in (0.2, 0.9):
        seen = torch.rand(1300, generator=g) < density
        want = rows(q, k[:, :, seen], v[:, :, seen])
        k2, v2 = (x.masked_fill(~seen[:, None], poison) for x in (k, v))
        assert bits.equal(rows(q, k2, v2, mask=seen.expand(12, -1)), want)
        one = rows(q[:, :, 3:4], k2, v2, mask=seen[None])
        assert bits.equal(one, want[:, :, 3:4])
        # and stock lets the poison through
        if poison != 1e30:
            assert not bits.equal(stock(q, k2, v2, attn_mask=seen.expand(12, -1)),
                                  stock(q, k, v, attn_mask=seen.expand(12, -1)))  # fmt: skip


@pytest.mark.parametrize("window", [1, 20, 512, 700])
def test_rolled_window_cache(window: int) -> None:
    """A cache that has dropped the keys behind the window gives the bits of one that has not."""
    n = 900
    q, k, v = qkv(6, 1, 4, 2, n, n)
    full = rows(q, k, v, causal=True, window=window)
    for t in (0, 19, 20, 511, 512, 699, 701, 899):
        low = max(0, t - window + 1)
        step = rows(q[:, :, t : t + 1], k[:, :, low : t + 1], v[:, :, low : t + 1])
        assert bits.equal(step, full[:, :, t : t + 1]), t


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 1), (8, 2), (4, 4)])
@pytest.mark.parametrize("kv_len", [1, 100, 513, 2000])
def test_neighbours(heads: int, kv_heads: int, kv_len: int) -> None:
    """Batch size, position in the batch and the neighbours' values do not matter (B1, B4, F1)."""
    q, k, v = qkv(7, 1, heads, kv_heads, 1, kv_len)
    alone = rows(q, k, v)
    for batch in (2, 3, 16):
        others = qkv(8, batch, heads, kv_heads, 1, kv_len, spread=30.0)
        for at in {0, batch // 2, batch - 1}:
            for x, own in zip(others, (q, k, v), strict=True):
                x[at] = own[0]
                x[at - 1] = float("nan")
            assert bits.equal(rows(*others)[at], alone[0])
    # and a head's result does not depend on the other heads
    group = heads // kv_heads
    for h in range(heads):
        kv = slice(h // group, h // group + 1)
        assert bits.equal(rows(q[:, h : h + 1], k[:, kv], v[:, kv]), alone[:, h : h + 1])


@pytest.mark.parametrize("kv_len", [40, 700, 3000])
def test_threads(kv_len: int) -> None:
    """Any number of threads (O1)."""
    before = torch.get_num_threads()
    try:
        for q_len in (1, 2, 40):
            q, k, v = qkv(9, 2, 6, 2, q_len, kv_len, 32)
            results = []
            for threads in (1, 2, 3, 8):
                torch.set_num_threads(threads)
                results += [rows(q, k, v, causal=True, q_start=kv_len - q_len) for _ in range(3)]
            assert all(bits.equal(r, results[0]) for r in results)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(dtype: torch.dtype) -> None:
    """Strides, offsets, alignment and expanded tensors."""
    for q_len in (1, 33):
        q, k, v = qkv(10, 2, 4, 2, q_len, 600, 20, 20, dtype)
        want = rows(q, k, v)
        for kind in (1, 2, 3):
            assert bits.equal(rows(*(relayout(x, kind) for x in (q, k, v))), want)
        shared = rows(q, k[:1].expand(2, -1, -1, -1), v[:1])  # broadcast over the batch
        assert bits.equal(shared[0], want[0])
        spread = [x.repeat_interleave(2, 1) for x in (k, v)]  # GQA written out as MHA
        assert bits.equal(rows(q, *spread), want)


def test_mask_form_does_not_matter() -> None:
    """Causal, the boolean triangle and the additive triangle are one thing (E2)."""
    q, k, v = qkv(11, 2, 4, 2, 600, 600)
    want = rows(q, k, v, causal=True)
    triangle = torch.ones(600, 600, dtype=torch.bool).tril()
    assert bits.equal(rows(q, k, v, mask=triangle), want)
    additive = torch.zeros(600, 600).masked_fill(~triangle, -torch.inf)
    assert bits.equal(rows(q, k, v, mask=additive), want)
    assert bits.equal(rows(q, k, v, mask=additive.expand(2, 4, -1, -1).contiguous()), want)


def test_packed_documents() -> None:
    """A block-diagonal mask gives every document the bits it has alone."""
    lengths = [3, 530, 64, 1, 40]
    total = sum(lengths)
    q, k, v = qkv(12, 1, 4, 2, total, total)
    name = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = (name[:, None] == name[None, :]) & torch.ones(total, total, dtype=torch.bool).tril()
    got = rows(q, k, v, mask=mask)
    for part in (name == i for i in range(len(lengths))):
        assert bits.equal(
            got[:, :, part], rows(q[:, :, part], k[:, :, part], v[:, :, part], causal=True)
        )
