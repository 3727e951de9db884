"""The engine against the reference, byte for byte; the reference against the contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from samebits import ops
from samebits.contract.numerics import row_sum
from samebits.contract.rows import RowContract
from samebits.ops.reduce import reference

Array = Callable[[torch.Tensor], np.ndarray]
Same = Callable[[torch.Tensor, np.ndarray], None]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PAIRS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., np.ndarray]]] = {
    "sum": (ops.sum, reference.sum),
    "mean": (ops.mean, reference.mean),
    "var": (ops.var, reference.var),
    "std": (ops.std, reference.std),
    "prod": (ops.prod, reference.prod),
    "nansum": (ops.nansum, reference.nansum),
    "logsumexp": (ops.logsumexp, reference.logsumexp),
    "norm0": (lambda x, d: ops.vector_norm(x, 0, d), lambda x: reference.vector_norm(x, 0)),
    "norm1": (lambda x, d: ops.vector_norm(x, 1, d), lambda x: reference.vector_norm(x, 1)),
    "norm2": (lambda x, d: ops.vector_norm(x, 2, d), lambda x: reference.vector_norm(x, 2)),
    "norm_max": (
        lambda x, d: ops.vector_norm(x, math.inf, d),
        lambda x: reference.vector_norm(x, math.inf),
    ),
    "norm_min": (
        lambda x, d: ops.vector_norm(x, -math.inf, d),
        lambda x: reference.vector_norm(x, -math.inf),
    ),
}


@hypothesis_settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 9),
    n=st.one_of(st.integers(1, 70), st.sampled_from([1023, 1024, 1025, 2049, 4096, 5131, 7168])),
    dtype=st.sampled_from(DTYPES),
    special=st.sampled_from([0.0, 0.0, 0.01]),
    column=st.booleans(),
)
@pytest.mark.parametrize("name", sorted(PAIRS))
def test_engine_is_the_reference(
    numbers: Callable[..., torch.Tensor],
    array: Array,
    same: Same,
    isa: str,
    name: str,
    seed: int,
    rows: int,
    n: int,
    dtype: torch.dtype,
    special: float,
    column: bool,
) -> None:
    scale = 2 if name == "prod" else 12
    x = numbers(seed, (rows, n), dtype, special=special, scale=scale)
    engine, slow = PAIRS[name]
    same(engine(x.t().contiguous(), 0) if column else engine(x, 1), slow(array(x)))


@pytest.mark.parametrize("correction", [0, 1, 2, 0.5, 50])
def test_corrections(
    numbers: Callable[..., torch.Tensor], array: Array, same: Same, correction: float
) -> None:
    x = numbers(5, (3, 37), torch.float32)
    same(ops.var(x, 1, correction=correction), reference.var(array(x), correction))
    value, mean = ops.std_mean(x, 1, correction=correction)
    same(value, reference.std(array(x), correction))
    same(mean, reference.mean(array(x)))


def test_long_rows_over_threads(
    numbers: Callable[..., torch.Tensor], array: Array, same: Same
) -> None:
    for n in (2**18, 2**18 + 5, 300 * 1024 + 1000):
        x = numbers(n, (2, n), torch.float32)
        same(ops.sum(x, 1), reference.sum(array(x)))
        same(ops.sum(x), reference.sum(array(x).reshape(-1)))
        same(ops.sum(x.t().contiguous(), 0), reference.sum(array(x)))
        same(ops.logsumexp(x, 1), reference.logsumexp(array(x)))
    columns = numbers(1, (300 * 1024 + 7, 6), torch.bfloat16)
    same(ops.sum(columns, 0), reference.sum(array(columns.t())))
    same(ops.var(columns, 0), reference.var(array(columns.t())))


def test_wider_and_narrower_results(
    numbers: Callable[..., torch.Tensor], array: Array, same: Same
) -> None:
    x = numbers(3, (4, 3000), torch.bfloat16)
    same(ops.sum(x, 1, dtype=torch.float32), reference.sum(array(x)))
    wide = numbers(4, (4, 3000), torch.float32)
    same(ops.sum(wide, 1, dtype=torch.bfloat16), reference.sum(array(wide.bfloat16())))


@pytest.mark.parametrize("op", ["sum", "mean", "var", "std", "norm", "logsumexp"])
def test_reference_is_the_contract(
    numbers: Callable[..., torch.Tensor], array: Array, op: str
) -> None:
    contract = RowContract(op, "fp32", "fp32")
    slow: dict[str, Callable[[Any], Any]] = {
        **{name: pair[1] for name, pair in PAIRS.items()},
        "norm": lambda v: reference.vector_norm(v, 2),
    }
    for n in (1, 17, 1024, 5000):
        v = array(numbers(n, (3, n), torch.float32))
        want = contract.evaluate(v, correction=1)
        assert (slow[op](v).view(np.uint32) == np.asarray(want).view(np.uint32)).all()


def test_reference_tree_is_row_sum(numbers: Callable[..., torch.Tensor], array: Array) -> None:
    for n in (0, 1, 16, 1000, 1024, 4100):
        v = array(numbers(n, (5, n), torch.float32))
        for kind, fn in (("sum", reference.sum), ("squares", reference.squares)):
            assert (fn(v).view(np.uint32) == row_sum(v, kind).view(np.uint32)).all()
