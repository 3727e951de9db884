"""The attention kernels have the bytes of their contract: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attention_kernel_cases import (
    DEVICE,
    MANY,
    alike,
    attend,
    contract,
    expected,
    ordered,
    paged,
    qkv,
)

from samebits import bits
from samebits.engines.schedule import BUCKETS, ScheduleKey
from samebits.engines.triton.attention import run
from samebits.engines.triton.attention.schedule import AttentionSchedule, candidates, default

WHOLE = AttentionSchedule(block_m=16, programs=1, spread=False)
SPREAD = AttentionSchedule(block_m=16, values=32)
SPLIT = AttentionSchedule(block_m=16, programs=MANY, spread=False, span=1, batch=2, pdl=False)
PAIRS = AttentionSchedule(block_m=16, programs=2, columns=16)
TALL = AttentionSchedule(block_m=64, programs=1, stages=2)
EACH = pytest.mark.parametrize("schedule", [WHOLE, SPLIT], ids=["whole", "split"])


def same(
    schedule: AttentionSchedule, *operands: torch.Tensor, of: Any = None, **options: Any
) -> None:
    of = of or contract(operands[0].dtype, operands[1].dtype)
    got, want = attend(of, schedule, *operands, **options), expected(of, *operands, **options)
    assert bits.equal(got[0], want[0])
    assert bits.equal(got[1], want[1])


@pytest.mark.parametrize(
    "schedule", [WHOLE, SPLIT, PAIRS, TALL], ids=["whole", "split", "pairs", "tall"]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_schedules_have_the_bytes_of_the_contract(
    schedule: AttentionSchedule, dtype: torch.dtype
) -> None:
    same(schedule, *qkv(batch=2, heads=4, kv_heads=2, q_len=5, kv_len=200, d=32, dtype=dtype))


@EACH
@pytest.mark.parametrize(
    "options",
    [
        {"causal": False}, {"window": 70}, {"window": 70, "causal": False}, {"softcap": 3.0},
        {"scale": -0.3}, {"scale": 0.0}, {"sinks": torch.tensor([4.0, -math.inf])},
        {"window": 3, "sinks": torch.tensor([60.0, math.nan])}, {"start": 20},
    ],
    ids=str,
)  # fmt: skip
def test_options(schedule: AttentionSchedule, options: dict[str, Any]) -> None:
    same(schedule, *qkv(q_len=20), **options)


@EACH
@pytest.mark.parametrize("kind", ["bool", "float", "half"])
def test_masks(schedule: AttentionSchedule, kind: str) -> None:
    g = torch.Generator().manual_seed(1)
    allowed = torch.rand(2, 5, 150, generator=g) < 0.4
    allowed[0, 2] = False
    mask = allowed
    if kind != "bool":
        mask = torch.randn(2, 5, 150, generator=g)
        mask = mask.half() if kind == "half" else mask
        mask = torch.where(allowed, mask, torch.finfo(mask.dtype).min)
        mask[1, :, ::7] = -math.inf
    same(schedule, *qkv(), mask=mask, causal=False)


@EACH
@pytest.mark.parametrize("kind", ["bool", "zeros and -inf", "zeros and lowest"])
def test_a_mask_that_only_hides_has_the_bits_of_none(
    schedule: AttentionSchedule, kind: str
) -> None:
    """So that a padded batch, which needs a mask, has the bits of each text alone."""
    q, k, v = alike(33, 300)
    mask = torch.ones(33, 300, dtype=torch.bool).tril(300 - 33)
    if kind != "bool":
        low = -math.inf if kind == "zeros and -inf" else torch.finfo(torch.float32).min
        mask = torch.zeros(33, 300).masked_fill(~mask, low)
    of = contract()
    plain, lse = attend(of, schedule, q, k, v)
    masked, masked_lse = attend(of, schedule, q, k, v, mask=mask, causal=False)
    assert lse is not None and masked_lse is not None
    assert bits.equal(masked_lse, lse) and bits.equal(masked, plain)


@pytest.mark.parametrize(
    ("schedule", "q_len"), [(WHOLE, 20), (SPLIT, 20), (TALL, 20), (SPREAD, 1), (PAIRS, 1)],
    ids=["whole", "split", "tall", "spread", "pairs"],
)  # fmt: skip
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 90.0}, {"window": 150}, {"sinks": torch.tensor([128.0, 131.0])}],
    ids=["plain", "softcap", "window", "sinks"],
)  # fmt: skip
def test_scores_that_are_alike(
    schedule: AttentionSchedule, q_len: int, options: dict[str, Any]
) -> None:
    same(schedule, *alike(q_len, 300), **options)


@EACH
@pytest.mark.parametrize("softcap", [None, 90.0])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_scores_that_are_alike(
    schedule: AttentionSchedule, kind: str, softcap: float | None
) -> None:
    g = torch.Generator().manual_seed(1)
    mask = torch.rand(1, 12, 300, generator=g) < 0.7
    if kind == "float":
        mask = torch.where(mask, torch.randn(1, 12, 300, generator=g), -math.inf)
    same(schedule, *alike(12, 300), mask=mask, causal=False, softcap=softcap)


@pytest.mark.parametrize(
    ("schedule", "q_len"), [(WHOLE, 6), (SPLIT, 6), (TALL, 6), (SPREAD, 1), (PAIRS, 1)],
    ids=["whole", "split", "tall", "spread", "pairs"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["none", "bool", "float", "half"])
@pytest.mark.parametrize("kv", [torch.bfloat16, torch.float8_e4m3fn])
def test_blocks_are_16_keys_in_a_row(
    schedule: AttentionSchedule, q_len: int, kind: str, kv: torch.dtype
) -> None:
    """However the compiler lays operands out that come from fp8 or that a mask has touched."""
    q, k, v = ordered(q_len, 300, kv)
    if kind == "none":
        same(schedule, q, k, v)
        return
    mask = torch.ones(q_len, 300, dtype=torch.bool).tril(300 - q_len)
    if kind != "bool":
        dtype = torch.float16 if kind == "half" else torch.float32
        mask = torch.zeros(q_len, 300, dtype=dtype).masked_fill(~mask, -math.inf)
    same(schedule, q, k, v, mask=mask, causal=False)


@pytest.mark.parametrize(("d", "dv"), [(16, 32), (80, 80), (96, 24), (192, 128)])
def test_head_sizes(d: int, dv: int) -> None:
    same(WHOLE, *qkv(q_len=3, kv_len=70, d=d, dv=dv))


@pytest.mark.parametrize("group", [1, 3, 16])
def test_groups_of_query_heads(group: int) -> None:
    same(WHOLE, *qkv(heads=2 * group, kv_heads=2, q_len=3, kv_len=70))


@EACH
def test_fp8_keys_and_values(schedule: AttentionSchedule) -> None:
    q, k, v = qkv(heads=2, kv_heads=2, q_len=3, kv_len=140)
    k, v = (x.clamp(-400, 400).to(torch.float8_e4m3fn) for x in (k, v))
    same(schedule, q, k, v, k_scale=torch.tensor([0.3, 1.7]), v_scale=torch.tensor([1.3, 0.01]))
    same(schedule, q, k, v, softcap=5.0, k_scale=torch.tensor([0.3, 1.7]))


@EACH
def test_special_values_that_are_seen(schedule: AttentionSchedule) -> None:
    """Inf, NaN, huge and tiny scores and values: what IEEE gives, in the row that sees them."""
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        operands = qkv(q_len=6, kv_len=200, seed=seed)
        for x in operands:
            flat = x.view(-1)
            for value in (math.inf, -math.inf, math.nan, 3e38, 1e-38, -0.0):
                count = 1 if seed < 2 else 4
                at = torch.randint(flat.numel(), (count,), generator=g)
                if not (x is operands[0] and not math.isfinite(value)):
                    flat[at.to(x.device)] = value
        same(schedule, *operands, window=90)


@EACH
def test_scores_far_apart_underflow_alike(schedule: AttentionSchedule) -> None:
    q, k, v = qkv(q_len=4, kv_len=200)
    same(schedule, q * 16, k, v)
    same(schedule, q * 16, k, v * 2.0**-120)


@pytest.mark.parametrize("schedule", [WHOLE, SPLIT, TALL], ids=["whole", "split", "tall"])
def test_keys_that_are_not_seen_may_hold_anything(schedule: AttentionSchedule) -> None:
    of, (q, k, v) = contract(), qkv(q_len=9, kv_len=140)
    want = attend(of, schedule, q, k, v)[0]
    for row in (0, 4, 8):
        k1, v1 = k.clone(), v.clone()
        k1[:, :, 132 + row :] = math.nan
        v1[:, :, 132 + row :: 2] = math.inf
        v1[:, :, 133 + row :: 2] = math.nan
        got = attend(of, schedule, q, k1, v1)[0]
        assert bits.equal(got[:, :, : row + 1], want[:, :, : row + 1])


def test_a_row_that_sees_nothing_is_zero() -> None:
    of, (q, k, v) = contract(), qkv(q_len=3, kv_len=10)
    for schedule in (WHOLE, SPLIT):
        out, lse = attend(of, schedule, q, k, v, start=-2)
        assert (bits.view(out[:, :, :2]) == 0).all()
        assert lse is not None
        assert (lse[:, :, :2] == -math.inf).all()


@pytest.mark.parametrize(
    "options",
    [
        {}, {"window": 70}, {"softcap": 3.0}, {"scale": -0.3}, {"start": 100, "window": 20},
        {"sinks": torch.tensor([4.0, -math.inf])}, {"causal": False},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("schedule", [SPREAD, SPLIT, WHOLE], ids=["spread", "split", "whole"])
def test_decode(schedule: AttentionSchedule, options: dict[str, Any]) -> None:
    """One position, in the kernels that are for it alone."""
    same(schedule, *qkv(q_len=1, kv_len=300, d=24, dv=24), **options)


def test_decode_of_fp8_and_special_values() -> None:
    q, k, v = qkv(heads=2, kv_heads=2, q_len=1, kv_len=140)
    k8, v8 = (x.clamp(-400, 400).to(torch.float8_e4m3fn) for x in (k, v))
    same(SPREAD, q, k8, v8, k_scale=torch.tensor([0.3, 1.7]), v_scale=torch.tensor([1.3, 0.01]))
    k[:, :, 100:] = math.nan
    v[:, :, 100::2] = math.nan
    v[:, :, 20, 3] = math.inf
    same(SPREAD, q, k, v, start=99)


@pytest.mark.parametrize("schedule", [WHOLE, SPLIT, SPREAD], ids=["whole", "split", "spread"])
def test_prefill_chunks_decode_and_verification_agree(schedule: AttentionSchedule) -> None:
    of, (q, k, v) = contract(), qkv(q_len=150, kv_len=150)
    want = attend(of, TALL, q, k, v)[0]
    for start, stop in ((0, 1), (63, 64), (127, 128), (128, 129), (149, 150), (60, 68), (125, 142)):
        part = attend(of, schedule, q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop])[0]
        assert bits.equal(part, want[:, :, start:stop])


@pytest.mark.parametrize("page", [16, 64, 128])
@pytest.mark.parametrize(
    ("schedule", "longest"), [(WHOLE, 3), (SPLIT, 3), (SPREAD, 1), (SPLIT, 1)],
    ids=["whole", "split", "spread decode", "split decode"],
)  # fmt: skip
def test_pages(schedule: AttentionSchedule, longest: int, page: int) -> None:
    of = contract()
    q, k, v = qkv(batch=2, heads=2, kv_heads=1, q_len=longest, kv_len=200)
    lens, q_lens = [200, 77], [longest, min(longest, 2)]
    k_cache, table = paged(k, page)
    v_cache, _ = paged(v, page)
    rows = torch.cat([q[b, :, : q_lens[b]].transpose(0, 1) for b in range(2)])
    sequences = run.Sequences(
        2, longest, table.size(1) * page, torch.tensor([0, longest, sum(q_lens)], device=DEVICE),
        kv_lens=torch.tensor(lens, dtype=torch.int32, device=DEVICE), table=table,
    )  # fmt: skip
    options = run.Options(0.25, causal=True, lse=True)
    out, lse = run.packed(of, schedule, rows, k_cache, v_cache, options, sequences)
    assert lse is not None
    for b, first in enumerate((0, longest)):
        own = (q[b : b + 1, :, : q_lens[b]], k[b : b + 1, :, : lens[b]], v[b : b + 1, :, : lens[b]])
        want, want_lse = expected(of, *own, scale=0.25)
        part = slice(first, first + q_lens[b])
        assert bits.equal(out[part].transpose(0, 1).cpu(), want[0])
        assert bits.equal(lse[:, part].cpu(), want_lse[0])


@EACH
def test_packed_sequences_and_any_strides(schedule: AttentionSchedule) -> None:
    of = contract()
    pairs = [qkv(heads=2, q_len=t, kv_len=s, seed=s) for t, s in ((5, 140), (1, 20), (3, 64))]
    q, k, v = (torch.cat([p[i][0].transpose(0, 1) for p in pairs]) for i in range(3))
    wide = torch.full((*k.shape[:2], 40), math.nan, dtype=k.dtype, device=DEVICE)
    wide[..., 3:19] = k
    starts = torch.tensor([130, 19, 61], dtype=torch.int32, device=DEVICE)
    sequences = run.Sequences(
        3, 5, 140, torch.tensor([0, 5, 6, 9], device=DEVICE),
        cu_k=torch.tensor([0, 140, 160, 224], device=DEVICE), starts=starts,
    )  # fmt: skip
    out, _ = run.packed(
        of, schedule, q, wide[..., 3:19], v, run.Options(0.25, causal=True), sequences
    )
    at = 0
    for operands, start in zip(pairs, starts.tolist(), strict=True):
        rows = operands[0].size(2)
        want = expected(of, *operands, scale=0.25, start=start)[0]
        assert bits.equal(out[at : at + rows].transpose(0, 1).cpu(), want[0])
        at += rows


def test_schedules_fit_and_defaults_are_pure() -> None:
    for d, dv in ((64, 64), (192, 128), (256, 256)):
        key = ScheduleKey(op="attention", device="sm_90", dtype="bf16", out_dtype="bf16",
                          head_dim=d, value_dim=dv, group=4)  # fmt: skip
        for bucket in range(len(BUCKETS) + 1):
            assert default(key, bucket) == default(key, bucket)
            for s in (default(key, bucket), *candidates(key, bucket)):
                assert s.stages >= 1
                assert 2 * (s.block_m * d + s.stages * 64 * (d + dv)) <= 227 << 10
    assert WHOLE.splits(1, 8) == 1
    assert SPLIT.splits(4, 8) == 8
    assert AttentionSchedule(block_m=16, programs=264).splits(64, 16) == 4
    alone = AttentionSchedule(block_m=16, stages=4, span=2)
    assert (alone.pipeline(132), alone.pipeline(133)) == ((2, 3), (1, 4))
