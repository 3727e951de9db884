"""Selection on the GPU is the head of a stable sort (faults I5, V1, V2)."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")

from interpreter import INTERPRETED
from samebits import bits
from samebits.engines.triton.order import select
from samebits.ops import order
from samebits.ops.order import cuda

DEVICE = "cpu" if INTERPRETED else "cuda"
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
LENGTHS = (1, 2, 129, 700) if INTERPRETED else (1, 1000, 152_064, 200_000)


def rows_with_ties(seed: int, rows: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    few = torch.randint(-2, 3, (rows, n), generator=g).float()
    x = torch.where(torch.rand(rows, n, generator=g) < 0.5, few, torch.randn(rows, n, generator=g))
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan])
    pick = special[torch.randint(0, 6, (rows, n), generator=g)]
    x = torch.where(torch.rand(rows, n, generator=g) < 0.01, pick, x).to(dtype)
    words = bits.view(x)
    return torch.where(x.isnan() & (few > 0), ~words ^ words.bitwise_not(), words).view(dtype)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("largest", [True, False])
def test_topk(n: int, dtype: torch.dtype, largest: bool) -> None:
    x = rows_with_ties(n, 3, n, dtype)
    for k in sorted({1, min(n, 60), n // 2 or 1, n}):
        want = order.topk(x, k, largest=largest)
        values, indices = select.topk(x.to(DEVICE), k, largest)
        assert bits.equal(indices.cpu(), want[1]), k
        assert bits.equal(values.cpu(), want[0])


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int64, torch.uint8])
def test_argextreme(n: int, dtype: torch.dtype) -> None:
    x = rows_with_ties(n, 2, n, torch.float32)
    x = x.to(dtype) if dtype.is_floating_point else x.nan_to_num().clamp(0, 9).to(dtype)
    for rows in (x, x[:1], torch.ones_like(x), -torch.ones_like(x)):
        assert bits.equal(select.argextreme(rows.to(DEVICE), True).cpu(), rows.argmax(-1))
        assert bits.equal(select.argextreme(rows.to(DEVICE), False).cpu(), rows.argmin(-1))
    if dtype is torch.int64:
        lowest = torch.full((1, n), -(2**63))
        assert int(select.argextreme(lowest.to(DEVICE), True)) == 0


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
def test_sort_keys(dtype: torch.dtype) -> None:
    x = rows_with_ties(3, 4, 500, torch.float32).to(dtype)
    keys = select.sort_keys(x.to(DEVICE)).cpu()
    for descending in (False, True):
        want = order.sort(x, descending=descending)[1]
        assert bits.equal(keys.sort(dim=-1, stable=True, descending=descending)[1], want)


@pytest.mark.skipif(INTERPRETED, reason="public operations take CUDA tensors")
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int32, torch.int64])
def test_public_functions(dtype: torch.dtype) -> None:
    x = rows_with_ties(5, 6, 700, torch.float32)
    x = (x if dtype.is_floating_point else x.nan_to_num().clamp(-9, 9)).to(dtype).view(2, 3, 700)
    there = x.to("cuda")
    for dim in (0, 1, 2):
        for f in (
            lambda t, d=dim: order.topk(t, 2, d),
            lambda t, d=dim: order.topk(t, 1, d, largest=False),
            lambda t, d=dim: order.sort(t, d),
            lambda t, d=dim: order.sort(t, d, descending=True),
            lambda t, d=dim: order.kthvalue(t, 2, d),
            lambda t, d=dim: (order.argmax(t, d), order.argmin(t, d, keepdim=True)),
        ):
            for got, want in zip(f(there), f(x), strict=True):
                assert bits.equal(got.cpu(), want)
    assert bits.equal(order.argmax(there).cpu(), order.argmax(x))


def test_negations_that_torch_has_put_off() -> None:
    x = rows_with_ties(8, 3, 129, torch.float32)
    negated = torch._neg_view(-x.to(DEVICE))
    values, indices = cuda.sort(negated, -1, True)
    want = order.sort(x, descending=True)
    assert bits.equal(indices.cpu(), want[1]) and torch.equal(
        values.nan_to_num().cpu(), want[0].nan_to_num()
    )
    assert bits.equal(cuda.argextreme(negated, True).cpu(), x.argmax(-1))
    assert bits.equal(cuda.topk(negated, 5, False)[1].cpu(), order.topk(x, 5, largest=False)[1])
