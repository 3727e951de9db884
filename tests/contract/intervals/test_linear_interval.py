"""LinearContract.interval: nothing it promises is ever broken, and what is worse falls outside."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from samebits.contract import (
    IEEE_FMA,
    Chain,
    Lanes,
    LinearContract,
    Segment,
    Split,
    dot,
    hopper_mma,
)
from samebits.contract import numerics as nx
from samebits.contract.intervals import certified_argmax
from samebits.errors import ContractError, ShapeError

BF16 = LinearContract(Split(4), hopper_mma("bf16"), "bf16", "bf16")
CHAIN = LinearContract(Chain(), hopper_mma("bf16"), "bf16", "bf16")
CPU = LinearContract(Lanes(16), IEEE_FMA, "fp32", "fp32")
Pair = tuple[np.ndarray, np.ndarray]


def script() -> ModuleType:
    path = Path(__file__).parents[3] / "scripts" / "interval_trial.py"
    spec = importlib.util.spec_from_file_location("interval_trial", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


TRIAL = script()


@pytest.mark.parametrize("case", TRIAL.CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_nothing_is_outside(case: tuple[str, str, int, tuple[str, ...]]) -> None:
    """Also the target: the median width stays under 5 times the largest error seen."""
    tally = TRIAL.trial(case, 8_000, np.random.default_rng(1))
    assert tally.outputs >= 8_000 and tally.largest > 0
    assert tally.outside == 0
    width, cheap = tally.width("replay"), tally.width("cheap")
    assert width is not None and width < 1
    # Without a replay: where single products are cut off less than sums are.
    if case[0] in ("bf16", "fp16", "tf32"):
        assert cheap is not None and cheap < 5


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs 80-bit arithmetic")
@pytest.mark.parametrize("case", TRIAL.ROWS, ids=lambda case: case[0])
def test_no_row_is_outside(case: tuple[str, int, str]) -> None:
    tally = TRIAL.row_trial(case, 3_000, np.random.default_rng(1))
    assert tally.outputs >= 3_000 and tally.largest > 0
    assert tally.outside == 0
    width = tally.width("replay")
    assert width is not None and width < 1


def data(k: int, *, m: int = 9, n: int = 11, seed: int = 0) -> Pair:
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (n, k)))
    return nx.round_to(x, "bf16"), nx.round_to(w, "bf16")


def exact(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x w^T in fractions."""
    out = np.empty((len(x), len(w)), object)
    for i, j in np.ndindex(out.shape):
        pairs = zip(x[i].tolist(), w[j].tolist(), strict=True)
        out[i, j] = sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction(0))
    return out


@pytest.mark.parametrize("k", [0, 1, 17, 200])
@pytest.mark.parametrize("order", ["contract", "any"])
def test_the_exact_sum_is_inside(k: int, order: str) -> None:
    x, w = data(k, m=3, n=4)
    i = CHAIN.interval(x, w, order=order)
    for at, value in np.ndenumerate(exact(x, w)):
        low, high = float(i.exact_low[at]), float(i.exact_high[at])
        assert Fraction(low) <= value <= Fraction(high)
        assert high - low <= 1e-12 * max(1.0, k)


def test_the_exact_result_with_an_epilogue_is_inside() -> None:
    x, w = data(40, m=3, n=4)
    c = np.linspace(-2, 2, 12).astype(np.float32).reshape(3, 4)
    contract = replace(CPU, epilogue=("alpha", "bias", "relu"))
    alpha, beta = Fraction(float(np.float32(0.3))), np.float32(-1.7)
    term = nx.mul32(c, beta)  # rounded by itself: an operand of the sum
    for order in ("contract", "any"):
        i = contract.interval(x, w, c, alpha=0.3, beta=-1.7, order=order)
        assert i.contains(contract.evaluate(x, w, c, alpha=0.3, beta=-1.7)).all()
        for at, value in np.ndenumerate(exact(x, w)):
            want = max(alpha * value + Fraction(float(term[at])), Fraction(0))
            assert Fraction(float(i.exact_low[at])) <= want <= Fraction(float(i.exact_high[at]))


def test_a_bias_may_come_first_or_last() -> None:
    x, w = data(300)
    c = np.random.default_rng(3).standard_normal(11).astype(np.float32)
    i = CPU.interval(x, w, c, order="any")
    one = np.ones((len(x), 1), np.float32)
    first = nx.strided_dot(np.hstack([one, x]), np.hstack([c[:, None], w]), 1)
    last = CPU.evaluate(x, w, c)
    assert (first != last).any()
    assert i.contains(first).all() and i.contains(last).all()


def test_lower_precision_is_outside() -> None:
    """A grid of fewer bits, or bf16 partial sums, is no reordering."""
    x, w = data(1024, m=30, n=30)
    split = CHAIN.interval(x, w, order="split")
    assert split.contains(BF16.evaluate(x, w)).all()
    coarse = replace(hopper_mma("bf16"), fraction=16)
    assert not split.contains(dot(x, w, Chain(), coarse)).all()
    a, b = (
        nx.round_to(dot(x[:, at], w[:, at], Chain(), hopper_mma("bf16")), "bf16")
        for at in (slice(0, 512), slice(512, 1024))
    )
    assert not CHAIN.interval(x, w, order="any").contains(nx.add32(a, b)).all()


def test_a_dropped_term_is_outside() -> None:
    x, w = data(512)
    y = np.array(CHAIN.evaluate(x[:, :-1], w[:, :-1]))
    assert not CHAIN.interval(x, w, order="any").contains(y).all()


def test_the_last_rounding() -> None:
    """bf16 results: most are settled, whatever the split; all orders' results are inside."""
    x, w = data(1024, m=40, n=40)
    every = BF16.interval(x, w, out_dtype="bf16", order="any")
    split = CHAIN.interval(x, w, out_dtype="bf16", order="split")
    for tree in (Chain(), Split(2), Split(8), Segment(192), Segment(320)):
        y = nx.round_to(dot(x, w, tree, BF16.arithmetic), "bf16")
        assert every.contains(y).all() and split.contains(y).all()
        assert (y[split.settled] == split.first[split.settled]).all()
    assert split.settled.mean() > 0.9 > every.settled.mean() > 0.3
    own = BF16.interval(x, w, out_dtype="bf16")
    assert own.settled.all() and (own.low < own.high).any()
    tensors = (torch.from_numpy(a).bfloat16() for a in (x, w))
    assert own.contains(BF16.evaluate(*tensors, out_dtype="bf16")).all()


def test_cheap_bounds_need_no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = data(300)
    y = np.array(BF16.evaluate(x, w))

    def never(*_: object, **__: object) -> None:
        raise AssertionError("evaluated")

    monkeypatch.setattr(LinearContract, "sums", never)
    assert BF16.interval(x, w, replay=False).contains(y).all()
    assert BF16.interval(x, w, order="any").contains(y).all()


@pytest.mark.parametrize("scaling", ["row", "block"])
@pytest.mark.parametrize("replay", [True, False])
def test_scales(scaling: str, replay: bool) -> None:
    leaf = 128 if scaling == "block" else 300
    tree = Segment(128) if scaling == "block" else Chain()
    contract = LinearContract(tree, hopper_mma("e4m3"), "e4m3", "bf16", scaling)
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 300, generator=g).to(torch.float8_e4m3fn) for n in (4, 200))
    leaves = -(-300 // leaf)
    xs = torch.randn(4, leaves, generator=g)
    ws = torch.randn(2 if scaling == "block" else 200, leaves, generator=g)
    y = contract.evaluate(x, w, x_scale=xs, w_scale=ws)
    own = contract.interval(x, w, x_scale=xs, w_scale=ws, replay=replay)
    every = contract.interval(x, w, x_scale=xs, w_scale=ws, order="any")
    assert own.contains(y).all() and every.contains(y).all()
    each = ws.double().repeat_interleave(128, 0)[:200] if scaling == "block" else ws.double()
    parts = zip(x.double().split(leaf, 1), w.double().split(leaf, 1), strict=True)
    want = sum(
        (a @ b.T) * xs.double()[:, i, None] * each[:, i] for i, (a, b) in enumerate(parts)
    ).numpy()
    slack = 1e-13 * np.abs(want).max()
    for i in (own, every):
        assert (i.exact_low - slack <= want).all() and (want <= i.exact_high + slack).all()
    assert np.median(every.width) > np.median(own.width) > 0


@pytest.mark.parametrize("scaling", ["none", "row", "block"])
def test_large_weights_are_taken_in_pieces(scaling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 256, generator=g).to(torch.float8_e4m3fn) for n in (3, 300))
    contract = LinearContract(Segment(128), hopper_mma("e4m3"), "e4m3", "bf16", scaling)
    scales = {}
    if scaling != "none":
        scales["x_scale"] = torch.rand(3, 2 if scaling == "block" else 1, generator=g)
        scales["w_scale"] = torch.rand(*((3, 2) if scaling == "block" else (300, 1)), generator=g)
    bias = torch.randn(300, generator=g)
    for order in ("contract", "any"):
        whole = contract.interval(x, w, bias, order=order, **scales)
        with monkeypatch.context() as patch:
            patch.setattr("samebits.contract.intervals.linear._TOGETHER", 128 * 256)
            pieces = contract.interval(x, w, bias, order=order, **scales)
        assert (whole.first == pieces.first).all() and (whole.last == pieces.last).all()


def test_batches_and_vectors() -> None:
    g = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 1, 3, 40, generator=g), torch.randn(4, 5, 40, generator=g)
    for order in ("contract", "any"):
        i = CPU.interval(x, w, order=order)
        assert i.first.shape == (2, 4, 3, 5) and i.contains(CPU.evaluate(x, w)).all()
        v = CPU.interval(x[0, 0, 0], w[0], order=order)
        assert v.first.shape == (5,)
        assert v.contains(CPU.evaluate(x[0, 0, 0], w[0])).all()
    with pytest.raises(ShapeError, match="against an interval"):
        CPU.interval(x, w).contains(torch.zeros(3))


@pytest.mark.parametrize("shape", [(0, 40), (3, 0, 40)])
@pytest.mark.parametrize("order", ["contract", "any"])
def test_no_rows(shape: tuple[int, ...], order: str) -> None:
    i = CPU.interval(torch.zeros(shape), torch.ones(5, 40), torch.ones(5), order=order)
    assert i.first.shape == (*shape[:-1], 5)
    assert certified_argmax(np.zeros(i.first.shape), i).token.shape == shape[:-1]


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_nothing_is_certified_past_the_finite_numbers(value: float) -> None:
    x, w = np.ones((1, 4), np.float32), np.ones((2, 4), np.float32)
    x[0, :2] = value
    w[1] = [1, -1, 1, 1]
    i = CPU.interval(x, w, order="any")
    assert i.low[0, 0] == -np.inf and i.high[0, 0] == np.inf
    if np.isfinite(value):  # no partial sum of the other overflows; of this one the contract's does
        assert np.isfinite(i.width[0, 1])
        own = CPU.interval(x, w)
        assert own.first[0, 0] == np.inf and np.isfinite(own.exact_high).all()


def test_tiny_numbers() -> None:
    """Products and sums that underflow: also those of a tensor core, whose grid has a floor."""
    rng = np.random.default_rng(0)

    def tiny(n: int) -> np.ndarray:
        x = np.ldexp(rng.standard_normal((n, 64)), rng.integers(-76, -60, (n, 64)))
        return nx.round_to(x.astype(np.float32), "bf16")

    x, w = tiny(6), tiny(7)
    for contract in (CHAIN, CPU):
        y = np.array(contract.evaluate(x, w))
        assert (y != 0).any()
        for keywords in ({}, {"replay": False}, {"order": "any"}):
            assert contract.interval(x, w, **keywords).contains(y).all()


def test_refusals() -> None:
    x, w = data(8)
    with pytest.raises(ContractError, match="order 'best'"):
        CPU.interval(x, w, order="best")  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="of chains"):
        CPU.interval(x, w, order="split")
    with pytest.raises(ContractError, match="rounds to fp32, not to bf16"):
        CPU.interval(x, w, out_dtype="bf16")
    with pytest.raises(ShapeError):
        CPU.interval(x, w[:, :4])


def test_subnormals_set_the_grid_as_the_smallest_normal_number() -> None:
    """Their products are far smaller than what the others are cut off for."""
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.integers(1, 4, (6, 40)), rng.integers(-24, -22, (6, 40))).astype(np.float32)
    w = nx.round_to(rng.standard_normal((7, 40)).astype(np.float32), "fp16")
    contract = LinearContract(Chain(), hopper_mma("fp16"), "fp16", "fp16")
    y = np.array(contract.evaluate(x, w))
    for keywords in ({"replay": False}, {"order": "split"}, {"order": "any"}):
        assert contract.interval(x, w, **keywords).contains(y).all()
