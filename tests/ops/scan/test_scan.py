"""Running sums: bits of the reference, and a prefix of the result is that of the prefix (L3)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from samebits import bits, ops
from samebits.errors import DTypeError, ShapeError
from samebits.ops.scan import reference

Array = Callable[[torch.Tensor], np.ndarray]
Same = Callable[[torch.Tensor, np.ndarray], None]
Numbers = Callable[..., torch.Tensor]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@hypothesis_settings(max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    rows=st.sampled_from([1, 3, 8, 9, 21]),
    n=st.integers(1, 90),
    dtype=st.sampled_from(DTYPES),
    special=st.sampled_from([0.0, 0.0, 0.01]),
    dim=st.integers(0, 2),
    to_float=st.booleans(),
)
def test_engine_is_the_reference(
    numbers: Numbers,
    array: Array,
    same: Same,
    isa: str,
    seed: int,
    rows: int,
    n: int,
    dtype: torch.dtype,
    special: float,
    dim: int,
    to_float: bool,
) -> None:
    x = numbers(seed, (rows, 2, n), dtype, special=special, scale=2)
    moved = x.movedim(2, dim)  # not contiguous
    to = torch.float32 if to_float else None
    same(ops.cumsum(moved, dim, dtype=to).movedim(dim, 2), reference.cumsum(array(x)))
    same(ops.cumprod(moved, dim, dtype=to).movedim(dim, 2), reference.cumprod(array(x)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prefix_of_the_result_is_the_result_of_the_prefix(dtype: torch.dtype) -> None:
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = ops.cumsum(x, 0)
    for k in (1, 2, 15, 16, 17, 1023, 38400, 99_999):
        assert bits.equal(ops.cumsum(x[:k], 0), whole[:k])
    for _ in range(3):
        assert bits.equal(ops.cumsum(x, 0), whole)
    columns = x.view(500, 200)
    for k in (1, 8, 131):  # neither do other lines matter
        assert bits.equal(ops.cumsum(columns[:, :k], 0), ops.cumsum(columns, 0)[:, :k])
        assert bits.equal(ops.cumsum(columns[:k], 1), ops.cumsum(columns, 1)[:k])
        assert bits.equal(ops.cumsum(columns.t()[:k], 1), ops.cumsum(columns, 0).t()[:k])


def test_edges() -> None:
    assert ops.cumsum(torch.tensor(3.0), 0).item() == 3
    assert ops.cumsum(torch.empty(2, 0), 1).shape == (2, 0)
    assert bits.view(ops.cumsum(torch.tensor([-0.0]), 0)).item() == 0
    with pytest.raises(ShapeError):
        ops.cumsum(torch.ones(2), 1)
    with pytest.raises(DTypeError):
        ops.cumsum(torch.ones(2, dtype=torch.float64), 0)
    with pytest.raises(DTypeError):
        ops.cumprod(torch.ones(2), 0, dtype=torch.int64)
