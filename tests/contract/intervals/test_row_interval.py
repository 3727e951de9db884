"""RowContract.interval: against evaluation, fp64 and stock torch's other orders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from samebits.contract import RowContract
from samebits.contract import numerics as nx
from samebits.contract.rows import (
    FORMULAS,
    HOPPER_ROW_TREE,
    LEAF_FORMULAS,
    ROW_TREE,
)
from samebits.errors import ContractError, ShapeError

EPS = 2.0**-17
STOCK: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1),
    "norm": lambda x: x.norm(dim=-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:], None, EPS),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:], None, None, EPS),
}


@pytest.mark.parametrize("n", [2, 33, 1500])
@pytest.mark.parametrize("op", list(FORMULAS))
def test_orders_and_exactness(op: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((60, n)) * 3 + rng.standard_normal((60, 1)) * 9).astype(np.float32)
    wide = STOCK[op](torch.from_numpy(x).double()).numpy()
    slack = 1e-13 * (np.abs(wide) + np.abs(x).max())
    own = RowContract(op, "fp32", "fp32")
    every = own.interval(x, eps=EPS, order="any")
    for tree, formulas in ((ROW_TREE, FORMULAS), (HOPPER_ROW_TREE, FORMULAS | LEAF_FORMULAS)):
        contract = RowContract(op, "fp32", "fp32", tree, formula=formulas[op])
        y = np.asarray(contract.evaluate(x, eps=EPS))
        i = contract.interval(x, eps=EPS)
        assert i.contains(y).all() and every.contains(y).all()
        assert i.settled.all()
        for low, high in ((i.exact_low, i.exact_high), (every.exact_low, every.exact_high)):
            assert (low - slack <= wide).all() and (wide <= high + slack).all()
            assert (high - low <= 1e-13 * n * (np.abs(wide) + np.abs(x).max())).all()
        error = np.abs(y - wide).max()
        assert np.median(i.width) < error or error < 1e-12
    assert every.contains(STOCK[op](torch.from_numpy(x))).all()
    permuted = x[:, rng.permutation(n)]
    if wide.ndim == 1:
        assert every.contains(own.evaluate(permuted, eps=EPS)).all()


def test_what_is_worse_is_outside() -> None:
    """Sums in bf16, and a mean that leaves out an element, are no reordering."""
    x = np.random.default_rng(0).standard_normal((50, 256)).astype(np.float32)
    contract = RowContract("sum", "fp32", "fp32")
    every = contract.interval(x, order="any")
    acc = np.zeros(50, np.float32)
    for column in x.T:
        acc = nx.round_to(nx.add32(acc, column), "bf16")
    assert every.contains(acc).mean() < 0.1
    assert every.contains(contract.evaluate(x[:, 1:])).mean() < 0.1


def test_weights_and_half_precision() -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((40, 300), 300, 300))
    t = [torch.from_numpy(a).bfloat16() for a in (x, w, b)]
    for op, extra in (("rms_norm", t[1:2]), ("layer_norm", t[1:])):
        contract = RowContract(op, "bf16", "bf16")
        i = contract.interval(t[0], *extra, out_dtype=torch.bfloat16, order="any")
        assert i.contains(contract.evaluate(t[0], *extra, out_dtype=torch.bfloat16)).all()
        assert i.settled.mean() > 0.9


def test_masked_logits() -> None:
    x = np.array([[0.5, -np.inf, 2.0], [-np.inf, -np.inf, -np.inf]], np.float32)
    contract = RowContract("softmax", "fp32", "fp32")
    for order in ("contract", "any"):
        i = contract.interval(x, order=order)
        assert i.contains(contract.evaluate(x)[:1].repeat(2, 0)).tolist()[0] == [True] * 3
        assert i.first[0, 1] == i.last[0, 1] == 0
        assert (i.low[1] == -np.inf).all()  # NaN: nothing is certified


def test_refusals() -> None:
    contract = RowContract("softmax", "fp32", "fp32")
    with pytest.raises(ContractError, match="use one of 'contract', 'any'"):
        contract.interval(np.ones((2, 2), np.float32), order="split")
    with pytest.raises(ShapeError):
        contract.interval(np.float32(1))


@pytest.mark.parametrize("op", ["mean", "std", "norm", "rms_norm", "layer_norm"])
def test_overflow_on_the_way_certifies_nothing(op: str) -> None:
    """What the squares, or the sum, of these come to has no fp32 number; the exact result has."""
    x = np.array([[3e38, 3e38, -1e37, 1.0]], np.float32)
    own = RowContract(op, "fp32", "fp32")
    i = own.interval(x, eps=EPS, order="any")
    y = np.asarray(own.evaluate(x, eps=EPS))
    assert i.contains(y).all() and i.contains(np.full_like(y, np.nan)).all()
    assert np.isinf(i.first).all() and np.isinf(i.last).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_masked_place_beside_nan_is_not_certain(bad: float) -> None:
    x = np.array([[-np.inf, bad, 1.0], [-np.inf, 2.0, 1.0]], np.float32)
    i = RowContract("softmax", "fp32", "fp32").interval(x, order="any")
    assert (i.first[0] == -np.inf).all() and (i.last[0] == np.inf).all()
    assert i.first[1, 0] == i.last[1, 0] == 0
