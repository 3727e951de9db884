"""The Hopper prefill kernel: the contract's bits, from every tile edge and beside any garbage."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from samebits.contract import AttentionContract, hopper_attention
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.attention.prefill import (
    HEAD_DIMS,
    constants,
    covers,
    cubin,
    prefill,
)
from samebits.engines.cuda.attention.schedule import PrefillSchedule
from samebits.errors import DeviceError

hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="runs on an sm_90 GPU",
)
LEAF = 512


def contract(dtype: torch.dtype) -> AttentionContract:
    return hopper_attention({torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype], leaf=LEAF)


def tensor(b: int, h: int, t: int, d: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """[b, h, t, d], laid out [b, t, h, d]."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(b, t, h, d, generator=generator).to(dtype)
    return (x.cuda() if torch.cuda.is_available() else x).transpose(1, 2)


def run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, **more: object
) -> torch.Tensor:
    out = torch.full_like(q, math.nan)
    prefill(
        contract(q.dtype), PrefillSchedule(), q, k, v, out, scale=q.size(-1) ** -0.5, causal=causal,
        **{"position": k.size(2) - q.size(2), **more},  # type: ignore[arg-type]
    )  # fmt: skip
    return out


def evaluated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    group = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return contract(q.dtype).evaluate(
        q.cpu(), k.cpu(), v.cpu(), causal=causal, out_dtype=q.dtype
    ).to(q.device)  # fmt: skip


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


@pytest.mark.parametrize("d", HEAD_DIMS)
def test_compiles_without_a_gpu(d: int) -> None:
    try:
        nvrtc.version()
    except DeviceError as error:
        pytest.skip(str(error))
    assert cubin(constants(d, LEAF, True, True, 2)).startswith(b"\x7fELF")


def test_takes_what_the_copy_engine_can_read() -> None:
    q = tensor(2, 4, 8, 128, torch.bfloat16, 0)
    assert covers(contract(q.dtype), q, q, q)
    assert not covers(contract(q.dtype), q, q, q[..., :64])
    assert not covers(contract(q.dtype), q.transpose(2, 3), q, q)
    assert not covers(contract(q.dtype), q, q[:, :1].expand(2, 4, 8, 128), q)


@hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("d", HEAD_DIMS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows, keys", [(65, 65), (66, 570), (130, 129)])
def test_bits_of_the_contract(
    dtype: torch.dtype, d: int, causal: bool, rows: int, keys: int
) -> None:
    q, k, v = (tensor(1, 1, n, d, dtype, i) for i, n in enumerate((rows, keys, keys)))
    assert same(run(q, k, v, causal), evaluated(q, k, v, causal))


@hopper
@pytest.mark.parametrize("chunks", [(0, 1, 128, 129, 1000), (0, 500, 640, 1000)])
def test_chunks_are_the_rows_of_the_whole(chunks: tuple[int, ...]) -> None:
    q = tensor(1, 4, 1000, 128, torch.bfloat16, 1)
    k, v = (tensor(1, 2, 1000, 128, torch.bfloat16, seed) for seed in (2, 3))
    whole = run(q, k, v, True)
    for start, end in pairwise(chunks):
        assert same(
            run(q[:, :, start:end], k[:, :, :end], v[:, :, :end], True), whole[:, :, start:end]
        )


@hopper
def test_packed_sequences_are_alone() -> None:
    lengths, starts = [300, 1, 700, 128], [0, 300, 301, 1001, 1129]
    q = tensor(1, 4, 1129, 128, torch.bfloat16, 1)
    k, v = (tensor(1, 2, 1129, 128, torch.bfloat16, seed) for seed in (2, 3))
    cut = torch.tensor(starts, dtype=torch.int32, device=q.device)
    packed = run(q, k, v, True, query_starts=cut, key_starts=cut, lengths=(max(lengths),) * 2)
    for a, b in pairwise(starts):
        alone = run(*(x[:, :, a:b] for x in (q, k, v)), True)
        assert same(packed[:, :, a:b], alone)


@hopper
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_keys_that_are_not_seen_may_hold_anything(value: float) -> None:
    q = tensor(2, 4, 300, 128, torch.bfloat16, 1)
    k, v = (tensor(2, 2, 900, 128, torch.bfloat16, seed) for seed in (2, 3))
    clean = run(q, k[:, :, :800], v[:, :, :800], True)
    k[:, :, 800:], v[:, :, 800:] = value, value
    assert same(run(q, k[:, :, :800], v[:, :, :800], True), clean)
    v[1, 1, 700, 3] = value  # seen by rows 200 and later of the heads that share it
    dirty = run(q, k[:, :, :800], v[:, :, :800], True)
    assert not dirty[1, 2:, 200:, 3].isfinite().any()
    dirty[1, 2:, 200:, 3] = clean[1, 2:, 200:, 3]
    assert same(dirty, clean)


@hopper
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 100, 513, 900])
def test_windows(window: int, causal: bool) -> None:
    q = tensor(1, 2, 300, 64, torch.bfloat16, 1)
    k, v = (tensor(1, 2, 900, 64, torch.bfloat16, seed) for seed in (2, 3))
    apart = torch.arange(600, 900)[:, None] - torch.arange(900)
    seen = (apart.abs() < window) & (apart >= 0 if causal else True)
    want = contract(q.dtype).evaluate(
        q.cpu(), k.cpu(), v.cpu(), seen=seen.numpy(), out_dtype=q.dtype
    )  # fmt: skip
    assert same(run(q, k, v, causal, window=window).cpu(), want)
    for values in (k, v):  # what no row sees
        values[:, :, : max(0, 601 - window)] = math.nan
    assert same(run(q, k, v, causal, window=window).cpu(), want)


@hopper
@pytest.mark.parametrize("sink", [-math.inf, -3.5, 0.0, 2.75, 40.0])
def test_sinks(sink: float) -> None:
    q, k, v = (tensor(1, 1, n, 64, torch.bfloat16, i) for i, n in enumerate((70, 600, 600)))
    want = contract(q.dtype).evaluate(
        q.cpu(), k.cpu(), v.cpu(), causal=True, sink=sink, out_dtype=q.dtype
    )  # fmt: skip
    sinks = torch.tensor([sink], device=q.device)
    assert same(run(q, k, v, True, sinks=sinks).cpu(), want)


@hopper
@pytest.mark.parametrize("sinks", [False, True])
def test_logsumexps_and_windows_are_those_of_the_general_kernel(sinks: bool) -> None:
    from samebits.engines.triton.attention import run as attention
    from samebits.engines.triton.attention.schedule import AttentionSchedule

    q = tensor(1, 4, 700, 128, torch.bfloat16, 1) * 4
    k, v = (tensor(1, 2, 700, 128, torch.bfloat16, seed) for seed in (2, 3))
    logits = torch.tensor([-math.inf, 0.5, 3.0, -20.0], device=q.device) if sinks else None
    options = attention.Options(128**-0.5, causal=True, window=300, sinks=logits, lse=True)
    found = [
        attention.dense(
            contract(q.dtype),
            AttentionSchedule(block_m=64, warps=8, stages=2, prefill=mine),
            q, k, v, options, q_start=start,
        )
        for mine in (None, PrefillSchedule(tiles=1))
        for start in (0, -650)
    ]  # fmt: skip
    for general, special in ((found[0], found[2]), (found[1], found[3])):
        assert same(general[0], special[0])
        assert general[1] is not None and special[1] is not None
        assert torch.equal(general[1].view(torch.int32), special[1].view(torch.int32))
    assert found[3][1] is not None and found[3][1][:, 0, :650].isneginf().all()
