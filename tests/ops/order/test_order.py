"""Ties go to the lowest index, in any company (faults V1, V2, I5, J4)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits import bits
from samebits.errors import DTypeError, ShapeError
from samebits.ops import order

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def rows_with_ties(seed: int, rows: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, (rows, n), generator=g).to(dtype)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan], dtype=dtype)
    pick = special[torch.randint(0, 5, (rows, n), generator=g)]
    return torch.where(torch.rand(rows, n, generator=g) < 0.3, pick, x)


def by_python(row: torch.Tensor, largest: bool) -> list[int]:
    """Indices in order, written without any sorting kernel of torch."""

    def key(i: int) -> tuple[bool, float, int]:
        v = float(row[i])
        nan = v != v
        if largest:
            return (not nan, -v if not nan else 0.0, i)
        return (nan, v if not nan else 0.0, i)

    return sorted(range(len(row)), key=key)


def test_stock_topk_breaks_ties_by_accident() -> None:
    x = torch.tensor([-0.1944, -0.1944, -0.1945, -0.1945, -0.1945])
    zeros = torch.zeros(16)
    stock = [zeros.topk(8).indices.tolist(), x.topk(1).indices.tolist()]
    assert stock != [list(range(8)), [0]]
    assert order.topk(zeros, 8)[1].tolist() == list(range(8))
    assert order.topk(x, 1)[1].tolist() == [0]


def test_stock_sort_is_not_stable() -> None:
    x = rows_with_ties(1, 1, 1000, torch.float32)[0]
    assert torch.sort(x, descending=True)[1].tolist() != by_python(x, True)
    assert order.sort(x, descending=True)[1].tolist() == by_python(x, True)


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 4),
    n=st.integers(1, 700),
    dtype=st.sampled_from(DTYPES),
    largest=st.booleans(),
    data=st.data(),
)
def test_topk_is_the_head_of_a_stable_sort(
    seed: int, rows: int, n: int, dtype: torch.dtype, largest: bool, data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, n))
    x = rows_with_ties(seed, rows, n, dtype)
    if data.draw(st.booleans()):
        x = x.repeat_interleave(3, 1)[:, ::3]  # strided
    values, indices = order.topk(x, k, largest=largest)
    assert indices.tolist() == [by_python(row, largest)[:k] for row in x]
    # torch.gather rewrites the payload of a 16-bit NaN, so elements are taken one by one
    assert bits.equal(values, torch.stack([row[i] for row, i in zip(x, indices, strict=True)]))
    transposed = order.topk(x.t(), k, 0, largest)
    assert bits.equal(transposed[1], indices.t()) and bits.equal(transposed[0], values.t())
    for i in range(rows):  # ROW
        assert bits.equal(order.topk(x[i : i + 1], k, largest=largest)[1][0], indices[i])


@pytest.mark.parametrize("n", [1, 2, 17, 1000, 200_000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_argmax_takes_the_first(n: int, dtype: torch.dtype) -> None:
    for seed in range(3):
        x = rows_with_ties(seed, 2, n, dtype)
        for row in x:
            keys = row.float()
            nan = keys.isnan()
            want = nan if nan.any() else keys == keys.max()
            assert int(order.argmax(row)) == int(want.nonzero()[0])
            want = nan if nan.any() else keys == keys.min()
            assert int(order.argmin(row)) == int(want.nonzero()[0])
        assert bits.equal(order.argmax(x, 1), torch.stack([order.argmax(row) for row in x]))


@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), dtype=st.sampled_from(DTYPES))
def test_kthvalue(seed: int, n: int, dtype: torch.dtype) -> None:
    x = rows_with_ties(seed, 1, n, dtype)[0]
    expected = by_python(x, False)
    for k in range(1, n + 1):
        assert int(order.kthvalue(x, k)[1]) == expected[k - 1]


def test_integers_and_scalars() -> None:
    x = torch.tensor([3, 1, 3, 2])
    assert order.topk(x, 2)[1].tolist() == [0, 2]
    assert order.topk(torch.tensor(1.5), 1, 0)[0].tolist() == 1.5
    assert order.topk(torch.empty(0, 5), 2)[0].shape == (0, 2)


def test_errors() -> None:
    with pytest.raises(ShapeError, match="k=4 is out of range"):
        order.topk(torch.zeros(3), 4)
    with pytest.raises(ShapeError, match="k=0"):
        order.kthvalue(torch.zeros(3), 0)
    with pytest.raises(DTypeError, match="complex"):
        order.sort(torch.zeros(3, dtype=torch.complex64))
