"""Cases that both kernels of decode attention have to pass on an sm_90 GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from samebits.contract import AttentionContract, hopper_attention
from samebits.engines.cuda.attention.schedule import DecodeSchedule

Run = Callable[..., torch.Tensor]
"""q [b, h, d], k and v [b, g, t, d] or pages, options of the kernel: the result [b, h, d]."""

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


def lengths_windows_and_pages(run: Run, pages_of: Sequence[int]) -> None:
    q, k, v = operands(3, 4, 2, 1200, 128, torch.bfloat16)
    counts = torch.tensor([1200, 513, 0], dtype=torch.int32, device="cuda")
    whole = run(q, k, v, counts=counts)
    for i, n in enumerate(counts.tolist()):
        want = evaluated(q[i : i + 1], k[i : i + 1], v[i : i + 1], n) if n else q[i : i + 1] * 0
        assert same(whole[i : i + 1], want.abs() if not n else want)
    assert same(run(q, k, v, counts=counts - 1, added=1)[:2], whole[:2])
    for window in (1, 100, 600):
        assert same(run(q, k, v, window=window), evaluated(q, k, v, 1200, window))
    for page in pages_of:
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


def what_is_not_finite_stays_where_it_is_seen(run: Run) -> None:
    q, k, v = operands(2, 4, 2, 900, 128, torch.bfloat16)
    clean = run(q, k, v)
    k[0, 1, 300] = math.nan  # one KV head of the first sequence
    v[1, 0, 17, 5] = math.inf
    out = run(q, k, v)
    assert same(out, evaluated(q, k, v, 900))
    assert out[0, 2:].isnan().all() and same(out[0, :2], clean[0, :2])
    assert out[1, :2, 5].isinf().all() and same(out[1, 2:], clean[1, 2:])


def attention_runs_it(decode: DecodeSchedule, keys: int) -> None:
    """The kernel runs where the schedule has it, with the bits of the one that runs otherwise."""
    from samebits.engines.triton.attention import run as attention
    from samebits.engines.triton.attention.schedule import AttentionSchedule

    q, k, v = operands(1, 8, 2, keys, 128, torch.bfloat16)
    q, k, v = q[:, :, None].cuda(), k.cuda(), v.cuda()
    options = attention.Options(128**-0.5, causal=True)
    want = None
    for mine in (None, decode):
        schedule = AttentionSchedule(block_m=16, stages=4, decode=mine)
        for start in (keys - 1, 700):
            out, _ = attention.dense(contract(q.dtype), schedule, q, k, v, options, q_start=start)
            if mine is None:
                want = {**(want or {}), start: out}
            else:
                assert want is not None and same(out, want[start])
