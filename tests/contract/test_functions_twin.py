"""The functions in NumPy and in C++ have the same bits, and are accurate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from samebits.contract import functions
from samebits.engines.cpu import _cpu


def arguments() -> np.ndarray:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = (rng.standard_normal(200_000) * 2.0 ** rng.integers(-20, 8, 200_000)).astype(np.float32)
    edges = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, -126, -126.00001, -127, 88.7, 89,
                        -103.9, -104, 127, 128, 1e-45, 1.1754944e-38, 2.0**-126])  # fmt: skip
    return np.concatenate([words, near, np.abs(near), edges])


@pytest.mark.parametrize("name", ["exp", "exp2", "log"])
def test_bits_of_the_engine(name: str, isa: str) -> None:
    x = arguments()
    got = np.empty_like(x)
    op = _cpu.pointwise_unary_ops().index(name)
    _cpu.pointwise_unary(op, 0, x.ctypes.data, got.ctypes.data, len(x), 0.0, 0.0, 0.0)
    want = getattr(functions, name)(x)
    assert (got.view(np.uint32) == want.view(np.uint32)).all()


@pytest.mark.parametrize(("name", "exact"), [("exp", np.exp), ("exp2", np.exp2), ("log", np.log)])
def test_accuracy(name: str, exact: np.ufunc) -> None:
    x = arguments()
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64))
        y = getattr(functions, name)(x).astype(np.float64)
        normal = np.isfinite(want) & (np.abs(want) > 2.0**-126) & (np.abs(want) < 2.0**128)
        error = np.abs(y - want)[normal] / np.spacing(np.abs(want[normal]).astype(np.float32))
        assert error.max() < 1.5
        special = ~np.isfinite(want)
    assert np.array_equal(y[special], want[special], equal_nan=True)


def test_exp2_flush_is_exp2_with_a_clear_cut() -> None:
    x = arguments()
    x = x[~(x > 127)]
    want = np.where(x < -126, np.float32(0), functions.exp2(x))
    assert (functions.exp2_flush(x).view(np.uint32) == want.view(np.uint32)).all()
    assert functions.exp2_flush(np.float32(-126.0)) == 2.0**-126
    assert math.isnan(functions.exp2_flush(np.float32(np.nan)))
