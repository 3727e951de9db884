"""Grouped products: the bytes of the contract from every schedule, wherever a slot stands."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import samebits as sb
from interpreter import INTERPRETED
from samebits import bits
from samebits.engines.schedule import BUCKETS, ScheduleKey
from samebits.engines.triton.grouped import combine, router, routing, run, schedule
from samebits.engines.triton.grouped.schedule import GroupedSchedule
from samebits.ops.moe import reference

DEVICE = "cpu" if INTERPRETED else "cuda"
HALF = [torch.bfloat16, torch.float16]
SWAPPED = GroupedSchedule(block_m=16, block_n=64, block_k=128, swap=True)
WIDE = GroupedSchedule(block_m=64, block_n=64, block_k=64, band=2)
TMA = GroupedSchedule(block_m=64, block_n=64, block_k=64, persistent=True, band=2)


def values(seed: int, *shape: int, dtype: torch.dtype, spread: int = 6) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    return (x * 2.0 ** torch.randint(-spread, spread, shape, generator=g)).to(dtype)


def chosen(seed: int, experts: int, *shape: int, low: int = 0) -> torch.Tensor:
    return torch.randint(low, experts, shape, generator=torch.Generator().manual_seed(seed))


def product(
    contract: Any, s: GroupedSchedule, x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor,
    **options: Any,
) -> torch.Tensor:  # fmt: skip
    """`run.grouped_linear` for operands in host memory, in the order of slots."""
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    home = {n: t.to(DEVICE) if isinstance(t, torch.Tensor) else t for n, t in options.items()}
    groups = routing.group_slots(ids.reshape(-1).to(DEVICE), len(weight))
    per_row = ids.shape[1] if ids.dim() == 2 else 1
    arguments = {"out_dtype": kinds[contract.output], "slots_per_row": per_row} | home
    return run.grouped_linear(
        contract, s, x.to(DEVICE), weight.to(DEVICE), groups, **arguments
    ).cpu()  # fmt: skip


@pytest.mark.parametrize("slots, experts", [(1, 1), (7, 3), (130, 5), (300, 40)])
def test_slots_are_sorted_stably(slots: int, experts: int) -> None:
    ids = chosen(slots, experts + 2, slots, low=-2)
    groups = routing.group_slots(ids.to(DEVICE), experts)
    group = torch.where(ids < 0, experts, torch.where(ids >= experts, experts + 1, ids))
    assert groups.order.tolist() == group.sort(stable=True).indices.tolist()
    counts = group.bincount(minlength=experts + 2)
    assert groups.edges.tolist() == [0, *counts.cumsum(0).tolist()]


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("s", [SWAPPED, WIDE, TMA])
@pytest.mark.parametrize(
    "n, k, tree", [(70, 200, None), (40, 1152, "split(4)"), (40, 900, "balanced(8)")]
)
def test_product_is_the_contract(
    dtype: torch.dtype, s: GroupedSchedule, n: int, k: int, tree: str | None
) -> None:
    experts = 3
    contract = sb.contract_of("grouped_linear", n=n, k=k, dtype=dtype, device="sm_90", tree=tree)
    x, weight = values(1, 9, k, dtype=dtype), values(2, experts, n, k, dtype=dtype)
    bias = values(3, experts, n, dtype=dtype)
    ids = chosen(4, experts, 9, 2, low=-1)
    ids[3] = torch.tensor([2, experts])  # no such expert
    want = reference.grouped_linear(contract, x, weight, ids, bias)
    y = product(contract, s, x, weight, ids, bias=bias)
    assert y[7].isnan().all()
    y[7] = 0
    assert bits.equal(y, want)
    transposed = weight.transpose(1, 2).contiguous().transpose(1, 2)
    again = product(contract, s, x, transposed, ids, bias=bias)
    assert bits.equal(again[:7], want[:7])
    alone = product(contract, s, x[5:6], weight, ids[5:6], bias=bias)
    assert bits.equal(alone, want[10:12])


@pytest.mark.parametrize("s", [SWAPPED, WIDE, TMA])
def test_gate_and_product_in_one_tile(s: GroupedSchedule) -> None:
    dtype, experts, inner, k = torch.bfloat16, 3, 40, 128
    contract = sb.contract_of("grouped_linear", n=2 * inner, k=k, dtype=dtype, device="sm_90")
    x, weight = (
        values(1, 12, k, dtype=dtype, spread=1),
        values(2, experts, 2 * inner, k, dtype=dtype),
    )
    ids = chosen(4, experts, 12, 2)
    want = reference.silu_mul(reference.grouped_linear(contract, x, weight, ids))
    y = product(contract, s, x, weight, ids, gated=True)
    assert bits.equal(y, want)
    in_order = product(contract, s, x, weight, ids, gated=True, scatter=False)
    assert bits.equal(in_order, want[ids.reshape(-1).sort(stable=True).indices])


@pytest.mark.parametrize("s", [SWAPPED, TMA])
def test_no_slots(s: GroupedSchedule) -> None:
    contract = sb.contract_of("grouped_linear", n=8, k=16, dtype="bf16", device="sm_90")
    x, weight = torch.zeros(0, 16).bfloat16(), torch.zeros(2, 8, 16).bfloat16()
    assert product(contract, s, x, weight, torch.zeros(0, 2, dtype=torch.int64)).shape == (0, 8)


def test_fp32_is_a_chain_of_fma() -> None:
    contract = sb.contract_of("grouped_linear", n=20, k=77, dtype="fp32", device="sm_90")
    x, weight = values(1, 5, 77, dtype=torch.float32), values(2, 2, 20, 77, dtype=torch.float32)
    ids = chosen(3, 2, 5)
    s = GroupedSchedule(block_m=16, block_n=32, block_k=32)
    want = reference.grouped_linear(contract, x, weight, ids)
    assert bits.equal(product(contract, s, x, weight, ids), want)


@pytest.mark.parametrize("scaling", ["row", "block"])
@pytest.mark.parametrize("swap", [True, False])
def test_scaled_fp8(scaling: str, swap: bool) -> None:
    n, k, rows, experts = 72, 300, 9, 2
    contract = sb.contract_of(
        "grouped_linear", n=n, k=k, dtype="e4m3", device="sm_90", scaling=scaling
    )
    kind = torch.float8_e4m3fn
    x, weight = values(1, rows, k, dtype=kind, spread=2), values(2, experts, n, k, dtype=kind)
    blocks = (3, 1, 3) if scaling == "block" else (1, n, 1)
    x_scale = values(3, rows, blocks[0], dtype=torch.float32).abs()
    w_scale = values(4, experts, *blocks[1:], dtype=torch.float32).abs()
    ids = chosen(5, experts, rows)
    s = GroupedSchedule(
        block_m=16 if swap else 64, block_n=64, block_k=128, swap=swap, num_warps=4, num_stages=3
    )
    want = reference.grouped_linear(contract, x, weight, ids, None, x_scale, w_scale)
    y = product(contract, s, x, weight, ids, x_scale=x_scale, w_scale=w_scale)
    assert bits.equal(y, want)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_combine_is_slot_order(dtype: torch.dtype) -> None:
    for top_k in (1, 2, 4, 8):
        y = values(1, 6, top_k, 70, dtype=dtype)
        weights = values(2, 6, top_k, dtype=torch.float32, spread=1)
        got = combine.combine(y.flatten(0, 1).to(DEVICE), weights.to(DEVICE), dtype)
        assert bits.equal(got.cpu(), reference.combine(y, weights))


@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("with_bias", [False, True])
def test_router(softmax: bool, renormalize: bool, with_bias: bool) -> None:
    logits = values(1, 9, 60, dtype=torch.bfloat16, spread=2)
    logits[3, 10:30] = logits[3, 10]
    logits[4] = 0
    logits[5, 7] = float("nan")
    logits[6, 50] = float("inf")
    logits[7] = float("-inf")
    bias = values(2, 60, dtype=torch.float32, spread=1) if with_bias else None
    scoring = "softmax" if softmax else "sigmoid"
    want_weights, want_ids = reference.router_topk(logits, 8, renormalize, scoring, bias)
    weights, ids = router.router_topk(
        logits.to(DEVICE), 8, renormalize=renormalize, softmax=softmax,
        bias=None if bias is None else bias.to(DEVICE),
    )  # fmt: skip
    assert ids.tolist() == want_ids.tolist()
    found, want = weights.cpu(), torch.from_numpy(want_weights)
    assert bool((found.isnan() == want.isnan()).all())
    assert bits.equal(found.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "e4m3"])
@pytest.mark.parametrize("experts", [8, 128, 256])
def test_defaults_cover_every_bucket(dtype: str, experts: int) -> None:
    scaling = "block" if dtype == "e4m3" else "none"
    key = ScheduleKey(
        op="grouped", device="sm_90", dtype=dtype, out_dtype="bf16", tree="chain",
        scaling=scaling, n=1024, k=2048, experts=experts,
    )  # fmt: skip
    for bucket in range(len(BUCKETS) + 1):
        found = list(schedule.candidates(key, bucket))
        assert found[0] == schedule.default(key, bucket)
        assert len(set(found)) == len(found)
        for s in found:
            size = {"bf16": 2, "fp32": 4, "e4m3": 1}[dtype]
            assert (s.block_m + s.block_n) * s.block_k * size * s.num_stages <= 227 * 1024
            assert dtype != "e4m3" or (s.block_n >= 64 if s.swap else s.block_m >= 64)
