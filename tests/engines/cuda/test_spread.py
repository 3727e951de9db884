"""Decoding by clusters: the contract's bits for any number of leaves, length, page and garbage."""

from __future__ import annotations

import math

import pytest
import torch

from samebits.contract import AttentionContract, hopper_attention
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.attention.schedule import DecodeSchedule
from samebits.engines.cuda.attention.spread import (
    HEAD_DIMS,
    LEAVES,
    constants,
    covers,
    cubin,
    leaves_seen,
    spread,
)
from samebits.errors import DeviceError

hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="runs on an sm_90 GPU",
)
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def contract(dtype: torch.dtype) -> AttentionContract:
    return hopper_attention(DTYPES[dtype])


def operands(
    b: int, heads: int, kv_heads: int, keys: int, d: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [b, h, d], k and v [b, h, t, d], with scores that spread over many powers of two."""
    generator = torch.Generator().manual_seed(keys + d)
    shapes = ((b, heads, d), (b, kv_heads, keys, d), (b, kv_heads, keys, d))
    q, k, v = (torch.randn(s, generator=generator).to(dtype) for s in shapes)
    return q * 4, k, v


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: object) -> torch.Tensor:
    q, k, v = (x.cuda() for x in (q, k, v))
    out = torch.full_like(q, math.nan)
    keys = more.pop("keys", k.size(2))
    spread(contract(q.dtype), q, k, v, out, scale=q.size(-1) ** -0.5, keys=keys, **more)  # type: ignore[arg-type]
    return out.cpu()


def evaluated(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: int, window: int = 0
) -> torch.Tensor:
    group = q.size(1) // k.size(1)
    k, v = (x[:, :, :keys].repeat_interleave(group, 1) for x in (k, v))
    seen = torch.arange(keys) >= (keys - window if window else 0)
    return contract(q.dtype).evaluate(  # type: ignore[return-value]
        q[:, :, None], k, v, seen=seen.numpy(), out_dtype=q.dtype
    ).squeeze(2)  # fmt: skip


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


@pytest.mark.parametrize("leaves", [1, 4, LEAVES])
@pytest.mark.parametrize("d", HEAD_DIMS)
def test_compiles_without_a_gpu(d: int, leaves: int) -> None:
    try:
        nvrtc.version()
    except DeviceError as error:
        pytest.skip(str(error))
    assert cubin(constants(d, 512, True, leaves)).startswith(b"\x7fELF")


def test_leaves_that_a_row_sees() -> None:
    assert [leaves_seen(512, keys, 0) for keys in (0, 1, 512, 513)] == [0, 1, 1, 2]
    for keys in (1, 512, 1000, 5000):
        for window in (1, 2, 100, 512, 513, 514, 2000):
            most = max(
                (end - 1) // 512 - max(0, end - window) // 512 + 1 for end in range(1, keys + 1)
            )
            assert most <= leaves_seen(512, keys, window) <= most + 1


def test_where_a_schedule_takes_work() -> None:
    schedule = DecodeSchedule()
    assert schedule.spreads(8, 4) and schedule.spreads(32, 1) and schedule.spreads(8, 0)
    assert not schedule.spreads(9, 4) and not schedule.spreads(11, 3) and not schedule.spreads(1, 5)
    assert schedule.runs(64, 16) and not schedule.runs(65, 16) and not schedule.runs(8, 3)


def test_takes_few_rows_and_whole_pieces() -> None:
    q, k, v = operands(2, 8, 2, 64, 128, torch.bfloat16)
    c = contract(q.dtype)
    assert covers(c, q, k, v)
    assert not covers(c, q, k, v[..., :64])
    assert not covers(c, q, k[:, :, :, ::2], v)
    wide = torch.zeros(1, 34, 128, dtype=torch.bfloat16)
    assert not covers(c, wide, k[:1], v[:1])


@hopper
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", HEAD_DIMS)
@pytest.mark.parametrize("keys", [1, 64, 511, 700, 1600, 2100])
def test_bits_of_the_contract(keys: int, d: int, dtype: torch.dtype) -> None:
    q, k, v = operands(2, 6, 2, keys + 70, d, dtype)
    k[:, :, keys:] = v[:, :, keys:] = math.nan  # nobody sees what lies behind
    assert same(run(q, k, v, keys=keys), evaluated(q, k, v, keys))


@hopper
@pytest.mark.parametrize("heads", [1, 8, 9, 16])
def test_any_number_of_query_heads_for_a_kv_head(heads: int) -> None:
    q, k, v = operands(1, heads, 1, 600, 64, torch.bfloat16)
    assert same(run(q, k, v), evaluated(q, k, v, 600))


@hopper
def test_lengths_windows_and_pages() -> None:
    q, k, v = operands(3, 4, 2, 1200, 128, torch.bfloat16)
    counts = torch.tensor([1200, 513, 0], dtype=torch.int32, device="cuda")
    whole = run(q, k, v, counts=counts)
    for i, n in enumerate(counts.tolist()):
        want = evaluated(q[i : i + 1], k[i : i + 1], v[i : i + 1], n) if n else q[i : i + 1] * 0
        assert same(whole[i : i + 1], want.abs() if not n else want)
    assert same(run(q, k, v, counts=counts - 1, added=1)[:2], whole[:2])
    for window in (1, 100, 600):
        assert same(run(q, k, v, window=window), evaluated(q, k, v, 1200, window))
    for page in (16, 24, 128):
        pages = 3 * -(-1200 // page)
        order = torch.randperm(pages, generator=torch.Generator().manual_seed(page))
        table = order.view(3, -1).int()
        cached = []
        for x in (k, v):
            padded = torch.nn.functional.pad(x, (0, 0, 0, table.size(1) * page - 1200))
            cut = padded.view(3, 2, -1, page, 128).transpose(1, 2).reshape(pages, 2, page, 128)
            cached.append(torch.empty_like(cut).index_copy_(0, order, cut))
        paged = run(q, *cached, counts=counts, keys=1200, table=table.cuda())
        assert same(paged, whole)


@hopper
def test_what_is_not_finite_stays_where_it_is_seen() -> None:
    q, k, v = operands(2, 4, 2, 900, 128, torch.bfloat16)
    clean = run(q, k, v)
    k[0, 1, 300] = math.nan  # one KV head of the first sequence
    v[1, 0, 17, 5] = math.inf
    out = run(q, k, v)
    assert same(out, evaluated(q, k, v, 900))
    assert out[0, 2:].isnan().all() and same(out[0, :2], clean[0, :2])
    assert out[1, :2, 5].isinf().all() and same(out[1, 2:], clean[1, 2:])


@hopper
def test_attention_runs_it_where_the_schedule_has_it() -> None:
    from samebits.engines.triton.attention import run as attention
    from samebits.engines.triton.attention.schedule import AttentionSchedule

    q, k, v = operands(1, 8, 2, 2000, 128, torch.bfloat16)
    q, k, v = q[:, :, None].cuda(), k.cuda(), v.cuda()
    options = attention.Options(128**-0.5, causal=True)
    want = None
    for mine in (None, DecodeSchedule(spread=8)):
        schedule = AttentionSchedule(block_m=16, stages=4, decode=mine)
        for start in (1999, 700):
            out, _ = attention.dense(contract(q.dtype), schedule, q, k, v, options, q_start=start)
            if mine is None:
                want = {**(want or {}), start: out}
            else:
                assert want is not None and same(out, want[start])
