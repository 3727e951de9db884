"""Attention on a GPU: dispatch, checks and the promises. Where there is none, Triton's interpreter
computes what the GPU would, and only what is about the device itself is left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")

import samebits as sb
from interpreter import INTERPRETED
from samebits import bits
from samebits.contract import hopper_attention
from samebits.errors import DTypeError, ShapeError, UncoveredError
from samebits.ops.attention import cuda

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
on_gpu = pytest.mark.skipif(INTERPRETED, reason="needs a GPU")


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The interpreter plays a Hopper GPU."""
    if INTERPRETED:
        monkeypatch.setattr(cuda, "contract_class", lambda index: "sm_90")
        cuda._key.cache_clear()
    yield
    cuda._key.cache_clear()


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    wide = torch.exp2(torch.randint(-4, 5, shape, generator=g).float())
    return (torch.randn(shape, generator=g) * wide).to(dtype).to(DEVICE)


def evaluated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of [H, T, D] rows at the end of their keys, one KV head each."""
    return hopper_attention("bf16").evaluate(
        q.cpu(), k.cpu(), v.cpu(), causal=True, out_dtype=torch.bfloat16
    )


def test_the_engine_computes_the_contract() -> None:
    q, k, v = draw(1, 2, 5, 32), draw(1, 2, 90, 32, seed=1), draw(1, 2, 90, 32, seed=2)
    out, lse = cuda.dense(q, k, v, scale=32**-0.5, causal=True, q_start=85, lse=True)
    assert bits.equal(out[0].cpu(), evaluated(q[0], k[0], v[0]))
    want = hopper_attention("bf16").logsumexp(q[0].cpu(), k[0].cpu(), v[0].cpu(), causal=True)
    assert lse is not None
    assert bits.equal(lse[0].cpu(), want)


def test_layout_of_the_result_follows_q() -> None:
    q = draw(1, 5, 2, 16).transpose(1, 2)
    k = draw(1, 1, 9, 16, seed=1)
    out, lse = cuda.dense(q, k, k, scale=0.25)
    assert lse is None
    assert out.shape == q.shape
    assert out.stride() == q.stride()


def test_operands_that_are_refused() -> None:
    q, k = draw(1, 2, 3, 16), draw(1, 2, 5, 16, seed=1)
    with pytest.raises(DTypeError, match="bfloat16 and float16"):
        cuda.operands("attention", q.float(), k.float(), k.float())
    with pytest.raises(DTypeError, match="same dtype"):
        cuda.operands("attention", q, k, k.half())
    with pytest.raises(ShapeError, match="at most 256"):
        cuda.operands("attention", *[draw(1, 1, 2, 264)] * 3)
    with pytest.raises(DTypeError, match="float8_e4m3fn"):
        cuda.scales("attention", "k_scale", 2.0, q, k, 2)
    with pytest.raises(ShapeError, match="one for each KV head"):
        cuda.scales("attention", "k_scale", torch.ones(3, device=DEVICE), q, k.to(cuda.FP8), 2)
    with pytest.raises(DTypeError, match="int32 or int64"):
        cuda.integers("attention", "cu_q", torch.ones(2, device=DEVICE), 1, DEVICE)
    with pytest.raises(ShapeError, match="dimension"):
        cuda.integers("attention", "cu_q", torch.ones(2, 2, device=DEVICE).int(), 1, q.device)
    with pytest.raises(DTypeError, match="k_scale and v_scale"):
        sb.ops.attention(q.cpu(), k.cpu(), k.cpu(), k_scale=1.0)


def test_scales_are_one_for_each_head() -> None:
    q, k = draw(1, 2, 3, 16), draw(1, 2, 5, 16, seed=1).to(cuda.FP8)
    both = torch.full((2,), 0.5, device=DEVICE)
    for given in (0.5, torch.tensor(0.5, device=DEVICE), both, torch._neg_view(-both)):
        found = cuda.scales("attention", "k_scale", given, q, k, 2)
        assert found is not None and not found.is_neg()
        assert found.tolist() == [0.5, 0.5]
    assert cuda.scales("attention", "k_scale", None, q, k, 2) is None


@on_gpu
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("rows, keys", [(300, 300), (130, 1100), (1, 900), (1, 5000)])
def test_scores_that_are_alike(rows: int, keys: int, d: int) -> None:
    """Every score near 128: many keys have a say, and what rounding a score loses shows."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, t, d, generator=g) for h, t in ((4, rows), (2, keys), (2, keys)))
    q[..., 0], k[..., 0] = 8, 16 * d**0.5
    q, k, v = (x.to(DEVICE, torch.bfloat16) for x in (q, k, v))
    start = keys - rows
    got = sb.ops.attention(q, k, v, causal=True, q_start=start)
    assert bits.equal(
        got[0].cpu(), evaluated(q[0], *(x[0].repeat_interleave(2, 0) for x in (k, v)))
    )
    mask = torch.ones(rows, keys, dtype=torch.bool, device=DEVICE).tril(start)
    assert bits.equal(sb.ops.attention(q, k, v, mask=mask), got)


@on_gpu
def test_stock_attention_is_not_consistent_and_ours_is() -> None:
    """The control first: a decode step of stock SDPA has other bits than the prefill's row."""
    q, k, v = (draw(1, h, 600, 128, seed=i) for i, h in enumerate((8, 8, 8)))
    stock = torch.nn.functional.scaled_dot_product_attention
    whole, ours = stock(q, k, v, is_causal=True), sb.ops.attention(q, k, v, causal=True)
    differs = 0
    for t in (100, 300, 599):
        one = (q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1])
        differs += not bits.equal(stock(*one), whole[:, :, t : t + 1])
        row = sb.ops.attention(*one, causal=True, q_start=t)
        assert bits.equal(row, ours[:, :, t : t + 1])
    assert differs > 0


@on_gpu
def test_packed_and_paged_sequences_have_their_own_bits() -> None:
    lengths, rows, heads = [700, 64, 1], [3, 64, 1], 4
    parts = [
        (draw(heads, t, 64, seed=s), draw(2, s, 64, seed=s + 1), draw(2, s, 64, seed=s + 2))
        for s, t in zip(lengths, rows, strict=True)
    ]
    alone = [
        sb.ops.attention(q, k, v, causal=True, q_start=s - t)
        for (q, k, v), s, t in zip(parts, lengths, rows, strict=True)
    ]
    cu_q = torch.tensor([0, *rows], device=DEVICE).cumsum(0).to(torch.int32)
    cu_k = torch.tensor([0, *lengths], device=DEVICE).cumsum(0)
    q, k, v = (torch.cat([p[i].transpose(0, 1) for p in parts]) for i in range(3))
    want = torch.cat([x.transpose(0, 1) for x in alone])
    assert bits.equal(sb.ops.attention_varlen(q, k, v, cu_q, cu_k, causal=True), want)

    page, each = 16, 44
    table = torch.randperm(3 * each, device=DEVICE).view(3, each)
    caches = []
    for i in (1, 2):
        cache = torch.full((3 * each, page, 2, 64), float("nan"), device=DEVICE).bfloat16()
        for b, part in enumerate(parts):
            x = part[i].transpose(0, 1)
            for n in range(-(-len(x) // page)):
                piece = x[n * page : (n + 1) * page]
                cache[table[b, n], : len(piece)] = piece
        caches.append(cache)
    lens = torch.tensor(lengths, device=DEVICE, dtype=torch.int32)
    assert bits.equal(sb.ops.attention_paged(q, *caches, table, lens, cu_q), want)


@on_gpu
@pytest.mark.parametrize("page", [16, 48])
def test_what_the_host_knows_of_lengths_changes_no_bit(page: int) -> None:
    """Long chunks behind a cached prefix then run by the kernel of packed rows, on copied keys."""
    rows, lengths = [600, 70, 1], [1500, 70, 900]
    each, total = -(-1600 // page), sum(rows)
    q, cache = draw(total, 32, 128), draw(3 * each, page, 8, 256, seed=1)
    k, v = cache.chunk(2, -1)
    table = torch.randperm(3 * each, device=DEVICE).view(3, each).to(torch.int32)
    lens = torch.tensor(lengths, device=DEVICE, dtype=torch.int32)
    cu_q = torch.tensor([0, 600, 670, 671], device=DEVICE, dtype=torch.int32)
    want = sb.ops.attention_paged(q, k, v, table, lens, cu_q)
    out = torch.zeros(total + 1, 32, 128, device=DEVICE).bfloat16()
    told = {"max_q": 600, "max_k": 1500, "total_k": 2500, "out": out[:total]}
    got = sb.ops.attention_paged(q, k, v, table, lens, cu_q, **told)
    assert isinstance(got, torch.Tensor)
    assert got.data_ptr() == out.data_ptr()
    assert bits.equal(got, want)
    assert not out[total].any()
    one = {"max_q": 1, "max_k": 900}
    last = sb.ops.attention_paged(q[670:], k, v, table[2:], lens[2:], cu_q[2:] - 670, **one)
    assert bits.equal(last, want[670:])


@on_gpu
def test_a_captured_decode_serves_every_length() -> None:
    heads, page, each = 4, 64, 20
    k, v = (draw(2 * each, page, 2, 64, seed=i) for i in (1, 2))
    table = torch.arange(2 * each, device=DEVICE, dtype=torch.int32).view(2, each)
    cu_q = torch.arange(3, device=DEVICE, dtype=torch.int32)
    lens = torch.ones(2, device=DEVICE, dtype=torch.int32)
    q = draw(2, heads, 64)
    with pytest.raises(UncoveredError, match="max_q"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        sb.ops.attention_paged(q, k, v, table, lens, cu_q)
    sb.ops.attention_paged(q, k, v, table, lens, cu_q, max_q=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sb.ops.attention_paged(q, k, v, table, lens, cu_q, max_q=1)
    for lengths in ([1, 1280], [513, 64], [1000, 7]):
        lens.copy_(torch.tensor(lengths))
        q.copy_(draw(2, heads, 64, seed=lengths[0]))
        graph.replay()
        for b, s in enumerate(lengths):
            own = [x[table[b].long()].flatten(0, 1)[:s].transpose(0, 1) for x in (k, v)]
            want = sb.ops.attention(q[b, :, None], *own, causal=True, q_start=s - 1)
            assert bits.equal(out[b], want[:, 0])


@on_gpu
def test_fp32_is_refused() -> None:
    q = draw(1, 2, 3, 16, dtype=torch.float32)
    with pytest.raises(DTypeError, match="bfloat16"):
        sb.ops.attention(q, q, q)
