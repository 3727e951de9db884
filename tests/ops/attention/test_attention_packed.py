"""Varlen and paged attention give each sequence the bits that it has alone."""

from __future__ import annotations

import pytest
import torch
from attention_cases import DTYPES, qkv

from samebits import bits
from samebits.errors import DTypeError, ShapeError
from samebits.ops.attention import attention, attention_paged, attention_varlen

LENGTHS = [(1, 1), (5, 5), (1, 700), (40, 40), (33, 550), (0, 3), (1, 1030), (2, 513)]


def sequences(
    dtype: torch.dtype, heads: int = 6, kv_heads: int = 2
) -> list[tuple[torch.Tensor, ...]]:
    return [qkv(i, 1, heads, kv_heads, n, s, 16, 24, dtype) for i, (n, s) in enumerate(LENGTHS)]


def alone(q, k, v, **options) -> torch.Tensor:  # type: ignore[no-untyped-def]
    out = attention(q, k, v, causal=True, q_start=k.size(2) - q.size(2), **options)
    assert isinstance(out, torch.Tensor)
    return out[0].transpose(0, 1)


def pack(parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    cu = torch.tensor([0, *(p.size(2) for p in parts)]).cumsum(0)
    return torch.cat([p[0].transpose(0, 1) for p in parts]), cu.to(torch.int32)


OPTIONS: list[dict[str, object]] = [{}, {"window": 60}, {"softcap": 5.0, "sinks": torch.ones(6)}]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("reverse", [False, True])
def test_varlen(dtype: torch.dtype, options: dict[str, object], reverse: bool) -> None:
    """Adding sequences or another order changes no bit (B1, B7)."""
    parts = sequences(dtype)[:: -1 if reverse else 1]
    (q, cu_q), (k, cu_k), (v, _) = (pack([p[i] for p in parts]) for i in range(3))
    out, lse = attention_varlen(q, k, v, cu_q, cu_k, causal=True, return_lse=True, **options)
    for i, (pq, pk, pv) in enumerate(parts):
        rows = slice(int(cu_q[i]), int(cu_q[i + 1]))
        assert bits.equal(out[rows], alone(pq, pk, pv, **options)), LENGTHS[i]
        start = pk.size(2) - pq.size(2)
        _, want = attention(pq, pk, pv, causal=True, q_start=start, return_lse=True, **options)
        assert bits.equal(lse[:, rows], want[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("page", [1, 16, 128])
def test_paged(dtype: torch.dtype, options: dict[str, object], page: int) -> None:
    """Any page size, pages in any order, unused slots full of NaN (B4, U1)."""
    parts = sequences(dtype)
    g = torch.Generator().manual_seed(page)
    needed = [-(-p[1].size(2) // page) for p in parts]
    order = torch.randperm(sum(needed) + 3, generator=g)
    table = torch.full((len(parts), max(needed)), 10**6, dtype=torch.int32)
    caches = [torch.full((len(order), page, 2, n), float("nan"), dtype=dtype) for n in (16, 24)]
    at = 0
    for i, part in enumerate(parts):
        own = order[at : at + needed[i]]
        table[i, : needed[i]] = own
        for cache, x in zip(caches, part[1:], strict=True):
            padded = torch.full((needed[i] * page, 2, x.size(3)), float("nan"), dtype=dtype)
            padded[: x.size(2)] = x[0].transpose(0, 1)
            cache[own] = padded.view(needed[i], page, 2, -1)
        at += needed[i]
    q, cu_q = pack([p[0] for p in parts])
    lens = torch.tensor([p[1].size(2) for p in parts], dtype=torch.int32)
    out = attention_paged(q, *caches, table, lens, cu_q, **options)
    assert isinstance(out, torch.Tensor)
    for i, part in enumerate(parts):
        assert bits.equal(out[int(cu_q[i]) : int(cu_q[i + 1])], alone(*part, **options)), LENGTHS[i]


def test_no_sequences() -> None:
    empty = torch.zeros(0, 2, 16)
    cu = torch.zeros(1, dtype=torch.int64)
    assert attention_varlen(empty, empty, empty, cu, cu).shape == (0, 2, 16)


def test_a_result_is_written_where_the_caller_says() -> None:
    parts = sequences(torch.bfloat16)
    (q, cu_q), (k, cu_k), (v, _) = (pack([p[i] for p in parts]) for i in range(3))
    want = attention_varlen(q, k, v, cu_q, cu_k, causal=True)
    wide = torch.zeros(len(q), q.size(1), v.size(2) + 3, dtype=q.dtype)
    out = attention_varlen(q, k, v, cu_q, cu_k, causal=True, out=wide[..., : v.size(2)])
    assert isinstance(out, torch.Tensor)
    assert out.data_ptr() == wide.data_ptr()
    assert bits.equal(wide[..., : v.size(2)].contiguous(), want)
    assert not wide[..., v.size(2) :].any()
    with pytest.raises(ShapeError, match="out must be"):
        attention_varlen(q, k, v, cu_q, cu_k, out=torch.empty_like(wide))
    with pytest.raises(DTypeError, match="out is"):
        attention_varlen(q, k, v, cu_q, cu_k, out=wide.float())
