"""Scattered sums have one order (faults I1, M1, M2, M4)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits import bits
from samebits.errors import DTypeError, ShapeError
from samebits.ops import scatter

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def values(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    spread = 2.0 ** torch.randint(-8, 8, shape, generator=g)
    return (torch.randn(shape, generator=g) * spread).to(dtype)


def chain(x: torch.Tensor, positions: list[int], src: torch.Tensor, alpha: float) -> torch.Tensor:
    """The contract in NumPy: x [places, inner], src [n, inner]."""
    acc = x.float().numpy().copy()
    rows = src.float().numpy()
    for p, row in zip(positions, rows, strict=True):
        acc[p] = acc[p] + (row if alpha == 1 else np.float32(alpha) * row)
    return torch.from_numpy(acc).to(x.dtype)


def test_stock_index_put_depends_on_threads() -> None:
    index, src = torch.arange(2**20) % 256, values(0, 2**20)
    threads = torch.get_num_threads()
    results = []
    try:
        for n in (1, 2, 8):
            torch.set_num_threads(n)
            results.append(torch.zeros(256).index_put_((index,), src, accumulate=True))
        ours = []
        for n in (1, 2, 3, 8):
            torch.set_num_threads(n)
            ours.append(scatter.index_put_accumulate(torch.zeros(256), [index], src))
    finally:
        torch.set_num_threads(threads)
    assert not all(bits.equal(results[0], r) for r in results)
    assert all(bits.equal(ours[0], r) for r in ours)
    assert bits.equal(ours[0], scatter.bincount(index, src))


@given(
    seed=st.integers(0, 10**6),
    places=st.integers(1, 9),
    n=st.integers(0, 40),
    inner=st.integers(1, 130),
    dtype=st.sampled_from(DTYPES),
    alpha=st.sampled_from([1.0, -0.7]),
    dim=st.integers(0, 1),
)
def test_index_add_is_the_chain(
    seed: int, places: int, n: int, inner: int, dtype: torch.dtype, alpha: float, dim: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    index = torch.randint(0, places, (n,), generator=g)
    x, src = values(seed, places, inner, dtype=dtype), values(seed + 1, n, inner, dtype=dtype)
    want = chain(x, index.tolist(), src, alpha)
    if dim == 0:
        got = scatter.index_add(x, 0, index, src, alpha)
    else:
        got = scatter.index_add(x.t(), 1, index.int(), src.t(), alpha).t()
    assert bits.equal(got, want)
    # a column's sum does not depend on its neighbours
    half = inner // 2
    alone = scatter.index_add(x[:, half:], 0, index, src[:, half:], alpha)
    assert bits.equal(alone, got[:, half:])


@given(seed=st.integers(0, 10**6), dtype=st.sampled_from(DTYPES), dim=st.integers(0, 2))
def test_scatter_add_follows_the_source(seed: int, dtype: torch.dtype, dim: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = values(seed, 4, 5, 3, dtype=dtype)
    shape = [3, 4, 2]
    shape[dim] = 11
    index = torch.randint(0, x.shape[dim], shape, generator=g)
    src = values(seed + 1, 12, 12, 12, dtype=dtype)
    acc = x.float().numpy().copy()
    for at in np.ndindex(*shape):
        to = list(at)
        to[dim] = int(index[at])
        acc[tuple(to)] = acc[tuple(to)] + np.float32(src[at].float())
    assert bits.equal(scatter.scatter_add(x, dim, index, src), torch.from_numpy(acc).to(dtype))


def test_moe_combine_is_slot_order() -> None:
    tokens, hidden = 7, 33
    for top_k in (1, 2, 4, 8):
        index = torch.arange(tokens).repeat_interleave(top_k)
        out = values(3, tokens * top_k, hidden, dtype=torch.bfloat16)
        got = scatter.index_add(torch.zeros(tokens, hidden, dtype=torch.bfloat16), 0, index, out)
        acc = torch.zeros(tokens, hidden)
        for slot in range(top_k):
            acc = acc + out.view(tokens, top_k, hidden)[:, slot].float()
        assert bits.equal(got, acc.bfloat16())


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_reductions_agree_with_stock_on_exact_values(reduce: str, include_self: bool) -> None:
    g = torch.Generator().manual_seed(5)
    x = torch.randint(1, 3, (6, 4), generator=g).float()
    src = torch.randint(1, 3, (8, 4), generator=g).float()
    index = torch.randint(0, 6, (8, 4), generator=g)
    want = x.scatter_reduce(0, index, src, reduce, include_self=include_self)
    assert bits.equal(scatter.scatter_reduce(x, 0, index, src, reduce, include_self), want)


def test_index_put_forms() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    i, j = torch.tensor([0, 1, 1]), torch.tensor([2, 0, 0])
    mask = torch.tensor([[True, False, True], [False, True, False]])
    for key, value in [
        ((i,), torch.ones(3, 3, 4)),
        ((i, j), torch.ones(3, 4)),
        ((None, j), torch.ones(2, 3, 4)),
        ((i, None, i), torch.ones(3, 3)),
        ((mask,), torch.full((1,), 2.0)),
        ((i[:, None], j[None], i), torch.tensor(1.0)),
    ]:
        want = x.clone()
        if None in key:
            _put_one_by_one(want, key, value)
        else:
            want.index_put_(key, value, accumulate=True)
        assert bits.equal(scatter.index_put_accumulate(x, key, value), want), key


def _put_one_by_one(
    x: torch.Tensor, key: tuple[torch.Tensor | None, ...], value: torch.Tensor
) -> None:
    places = torch.arange(x.numel()).view(x.shape)[
        tuple(slice(None) if k is None else k for k in key)
    ]
    for place, v in zip(places.reshape(-1), value.expand(places.shape).reshape(-1), strict=True):
        x.view(-1)[place] += v


def test_histogram_counts_like_stock() -> None:
    x = values(9, 2000)
    counts, edges = torch.histogram(x, 17, range=(-4.0, 4.0))
    assert bits.equal(scatter.histogram(x, edges), counts)
    weight = values(10, 2000)
    got = scatter.histogram(x, edges, weight)
    want = np.zeros(17, dtype=np.float32)
    for v, w in zip(x.numpy(), weight.numpy(), strict=True):
        at = int(np.searchsorted(edges.numpy(), v, side="right")) - 1
        if v == edges[-1]:
            at = 16
        if 0 <= at < 17:
            want[at] = want[at] + w
    assert bits.equal(got, torch.from_numpy(want))


@given(seed=st.integers(0, 1000), reduce=st.sampled_from(["sum", "mean", "max", "min", "prod"]))
def test_segment_reduce_is_each_segment_alone(seed: int, reduce: str) -> None:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 6, (5,), generator=g)
    data = values(seed, int(lengths.sum()), 3)
    whole = scatter.segment_reduce(data, lengths, reduce)
    for s, part in enumerate(data.split(lengths.tolist())):
        alone = scatter.segment_reduce(part, torch.tensor([len(part)]), reduce)
        assert bits.equal(whole[s], alone[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_computed_nan_is_the_canonical_one(dtype: torch.dtype) -> None:
    """Processors disagree: 0 / 0 is negative on x86 and all ones on a GPU."""
    data = torch.tensor([[1.0], [math.inf], [-math.inf]], dtype=dtype)
    nan = bits.view(torch.tensor(math.nan, dtype=torch.float32).to(dtype))
    if dtype in (torch.bfloat16, torch.float16):
        nan = torch.tensor(0x7FC0 if dtype is torch.bfloat16 else 0x7E00, dtype=torch.int16)
    mean = scatter.segment_reduce(data, torch.tensor([1, 0, 2]), "mean")
    assert bits.view(mean)[1:, 0].tolist() == [nan.item()] * 2
    where = torch.zeros(3, dtype=torch.int64)
    total = scatter.index_add(data[:1], 0, where, data)
    assert bits.view(total).item() == nan.item()
    if dtype in (torch.float32, torch.float64):
        density = scatter.histogram(data[:0, 0], torch.arange(3).to(dtype), density=True)
        assert bits.view(density).tolist() == [nan.item()] * 2


def test_errors() -> None:
    x = torch.zeros(3, 2)
    with pytest.raises(IndexError, match="out of range"):
        scatter.index_add(x, 0, torch.tensor([3]), torch.zeros(1, 2))
    with pytest.raises(ShapeError, match="source"):
        scatter.index_add(x, 0, torch.tensor([1]), torch.zeros(2, 2))
    with pytest.raises(DTypeError, match="convert"):
        scatter.index_add(x, 0, torch.tensor([1]), torch.zeros(1, 2).half())
    with pytest.raises(DTypeError, match="not covered"):
        scatter.index_add(x.to(torch.complex64), 0, torch.tensor([1]), x[:1].to(torch.complex64))
    with pytest.raises(IndexError, match="negative"):
        scatter.bincount(torch.tensor([-1]), torch.tensor([1.0]))
    with pytest.raises(ShapeError, match="not one of"):
        scatter.scatter_reduce(x, 0, torch.zeros(1, 2, dtype=torch.int64), x[:1], "median")
