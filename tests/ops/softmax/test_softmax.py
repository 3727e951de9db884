"""Softmax: bits of the reference, equal rows (F1), full vocabulary (L5, Q1, Q2), any layout."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from samebits import bits, ops
from samebits.errors import DTypeError, SamebitsError, ShapeError
from samebits.ops.softmax import reference

Array = Callable[[torch.Tensor], np.ndarray]
Same = Callable[[torch.Tensor, np.ndarray], None]
Numbers = Callable[..., torch.Tensor]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BOTH = {
    "softmax": (ops.softmax, reference.softmax),
    "log_softmax": (ops.log_softmax, reference.log_softmax),
}


@hypothesis_settings(max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 7),
    n=st.one_of(st.integers(1, 70), st.sampled_from([1024, 1025, 4097, 5131])),
    dtype=st.sampled_from(DTYPES),
    special=st.sampled_from([0.0, 0.0, 0.003]),
    scale=st.sampled_from([0, 2, 7]),
    to_float=st.booleans(),
    dim=st.integers(0, 2),
)
@pytest.mark.parametrize("name", sorted(BOTH))
def test_engine_is_the_reference(
    numbers: Numbers,
    array: Array,
    same: Same,
    isa: str,
    name: str,
    seed: int,
    rows: int,
    n: int,
    dtype: torch.dtype,
    special: float,
    scale: int,
    to_float: bool,
    dim: int,
) -> None:
    engine, slow = BOTH[name]
    x = numbers(seed, (rows, 2, n), dtype, special=special, scale=scale)
    moved = x.movedim(2, dim).contiguous()
    got = engine(moved, dim, dtype=torch.float32 if to_float else None)
    assert got.is_contiguous() and got.shape == moved.shape
    same(got.movedim(dim, 2), slow(array(x)))


@pytest.mark.parametrize("name", sorted(BOTH))
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_long_row(
    numbers: Numbers, array: Array, same: Same, name: str, dtype: torch.dtype
) -> None:
    x = numbers(1, (1, 262_161), dtype, scale=2)  # its passes are shared by the threads
    engine, slow = BOTH[name]
    want = slow(array(x))
    same(engine(x), want)
    same(engine(x.expand(5, -1)), want.repeat(5, 0))
    same(engine(x.t(), 0), want.T)


@pytest.mark.parametrize("n", [1765, 1766, 1768])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_rows_agree_at_any_alignment(n: int, dtype: torch.dtype) -> None:
    row = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    batch = row.expand(128, n).contiguous()  # odd n: every row starts at another alignment
    for engine, _ in BOTH.values():
        out = engine(batch)
        assert bits.equal(out, engine(row).expand(128, n))


def test_stock_log_softmax_over_a_vocabulary_is_the_negative_control() -> None:
    x = torch.randn(6, 128256, generator=torch.Generator().manual_seed(0))
    stock = torch.log_softmax(x, -1)
    assert all(bits.equal(torch.log_softmax(x[i : i + 1], -1)[0], stock[i]) for i in range(6))
    ours = ops.log_softmax(x)
    for rows in (slice(0, 1), slice(2, 3), slice(1, 6), slice(0, 4)):
        assert bits.equal(ops.log_softmax(x[rows]), ours[rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 17, 5000, 128256])
def test_token_logprob_is_log_softmax(dtype: torch.dtype, n: int) -> None:
    g = torch.Generator().manual_seed(n)
    x = (torch.randn(2, 4, n, generator=g) * 5).to(dtype)
    ids = torch.randint(0, n, (2, 4), generator=g)
    for to in (None, torch.float32):
        full = ops.log_softmax(x, dtype=to).gather(-1, ids[..., None])[..., 0]
        assert bits.equal(ops.token_logprob(x, ids, dtype=to), full)
        for micro in (1, 2):  # micro-batches and packing do not matter
            parts = [
                ops.token_logprob(a, b, dtype=to)
                for a, b in zip(x.view(8, n).split(micro), ids.view(8).split(micro), strict=True)
            ]
            assert bits.equal(torch.cat(parts), full.view(8))
    wide = torch.full((8, n + 5), math.nan, dtype=dtype)
    wide[:, 2 : n + 2] = x.view(8, n)
    strided = ops.token_logprob(wide[:, 2 : n + 2], ids.view(8).to(torch.int32))
    assert bits.equal(strided, ops.token_logprob(x, ids).view(8))


def test_special_rows() -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor([[-inf, -inf], [inf, 0.0], [nan, 0.0], [-inf, 3.0], [-0.0, -inf], [88, -88]])
    for engine, stock in ((ops.softmax, torch.softmax), (ops.log_softmax, torch.log_softmax)):
        torch.testing.assert_close(engine(x), stock(x, -1), equal_nan=True)
        assert set(bits.view(engine(x[:3])).reshape(-1).tolist()) == {0x7FC00000}
    assert ops.softmax(torch.tensor(5.0)).item() == 1
    assert ops.softmax(torch.empty(0, 3)).shape == (0, 3)
    assert ops.softmax(torch.empty(3, 0), 0).shape == (3, 0)
    assert ops.token_logprob(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)).shape == (0,)


def test_bad_arguments() -> None:
    x = torch.randn(2, 3)
    with pytest.raises(ShapeError):
        ops.softmax(x, 2)
    with pytest.raises(DTypeError):
        ops.softmax(x.double())
    with pytest.raises(DTypeError):
        ops.softmax(x, dtype=torch.float64)
    for ids in (torch.tensor([0, 3]), torch.tensor([0, -1]), torch.tensor([0, 1, 2])):
        with pytest.raises(ShapeError):
            ops.token_logprob(x, ids)
    with pytest.raises(ShapeError):
        ops.token_logprob(torch.empty(2, 0), torch.tensor([0, 0]))
    with pytest.raises(DTypeError):
        ops.token_logprob(x, torch.tensor([0.0, 1.0]))
    with pytest.raises(DTypeError):
        ops.token_logprob(x, torch.tensor([0, 1]), dtype=torch.bfloat16)
    with pytest.raises(SamebitsError, match="backward"):
        ops.softmax(x.requires_grad_())
