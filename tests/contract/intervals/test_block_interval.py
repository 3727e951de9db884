"""Intervals of tensor-core chains: no result outside, whatever the data, and narrow ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.contract import FORMATS, BlockFma, Chain, LinearContract, dot, hopper_mma
from samebits.contract import numerics as nx
from samebits.contract.intervals import blocks
from samebits.contract.operands import values, widen

INPUTS = ("bf16", "fp16", "tf32", "e4m3", "e5m2")


def stored(x: np.ndarray, input: str) -> np.ndarray:
    """The nearest values of an input format, roughly."""
    x = x.astype(np.float32)
    if input in ("bf16", "fp16"):
        return nx.round_to(x, input)
    if input == "tf32":
        return values(x, input, "x")
    table = widen(np.arange(256, dtype=np.uint8), input)
    known = np.unique(table[np.isfinite(table)])
    return known[np.searchsorted(known, x).clip(0, len(known) - 1)]


def draw(input: str, k: int, kind: str, center: int, spread: int, seed: int) -> list[np.ndarray]:
    """x [5, k] and w [6, k], exponents within `spread` of `center`."""
    rng, fraction = np.random.default_rng(seed), FORMATS[input].fraction
    found = []
    for rows in (5, 6):
        x = rng.standard_normal((rows, k))
        if kind == "full":  # every bit is set, so that all are lost
            x = np.sign(x) * (2 - 2.0**-fraction)
        elif kind == "few":  # sums that are exact
            x = np.rint(2 * x)
        elif kind == "positive":
            x = np.abs(x)
        x = np.ldexp(x, center + rng.integers(-spread, spread + 1, x.shape))
        x[:, rng.random(k) < 0.2] = 0
        found.append(stored(x, input))
    if kind == "cancelling":
        half = k // 2
        found[0][:, half : 2 * half], found[1][:, half : 2 * half] = (
            found[0][:, :half], -found[1][:, :half],
        )  # fmt: skip
    return found


@settings(deadline=None, max_examples=120)
@given(
    input=st.sampled_from(INPUTS),
    k=st.integers(1, 100),
    kind=st.sampled_from(["normal", "full", "few", "positive", "cancelling"]),
    center=st.integers(-70, 20),
    spread=st.integers(0, 12),
    seed=st.integers(0, 1 << 20),
)
def test_no_chain_is_outside(
    input: str, k: int, kind: str, center: int, spread: int, seed: int
) -> None:
    """Also where operands, products, accumulators are subnormal, and where operands overflow."""
    least = FORMATS[input].min_exponent - FORMATS[input].fraction
    x, w = draw(input, k, kind, max(center, least), spread, seed)
    step = hopper_mma(input)
    with np.errstate(all="ignore"):
        y = dot(x, w, Chain(), step)
        first, last = blocks.chain(x, w, step)
    assert (((first <= y) & (y <= last)) | np.isnan(y)).all()
    unknown = np.isneginf(first) & np.isposinf(last)
    assert unknown[np.isnan(y)].all()
    contract = LinearContract(Chain(), step, input, "fp32")
    for order in ("split", "any"):
        assert contract.interval(x, w, order=order).contains(y).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["contract", "split", "any"])
def test_subnormal_accumulators_set_the_grid_as_the_smallest_normal_number(order: str) -> None:
    """Products far below 2^-126 lose bits beside one: more than their own sizes tell."""
    contract = LinearContract(Chain(), hopper_mma("bf16"), "bf16", "fp32")
    lost = 0
    for exponent in range(-146, -136):
        x, w = np.zeros((1, 32), np.float32), np.zeros((1, 32), np.float32)
        x[0, 0] = w[0, 0] = 2.0**-65
        x[0, 16:], w[0, 16:] = 255 / 128 * 2.0**-64, 241 / 128 * 2.0 ** (exponent + 64)
        y = np.asarray(contract.evaluate(x, w))
        lost += int((y < x.astype(np.float64) @ w.T.astype(np.float64)).sum())
        found = contract.interval(x, w, order=order, replay=False)  # type: ignore[arg-type]
        assert found.contains(y).all()
    assert lost > 4


@pytest.mark.parametrize("input", ["bf16", "fp16", "tf32"])
def test_sums_that_lose_nothing_are_known(input: str) -> None:
    rng = np.random.default_rng(0)
    x, w = (stored(rng.integers(-2, 3, (n, 96)), input) for n in (7, 9))
    first, last = blocks.chain(x, w, hopper_mma(input))
    assert (first == last).all() and (first == x @ w.T).all()


def test_only_products_that_reach_below_the_grid_are_charged() -> None:
    """Products of bf16 have 16 bits: of those near the largest none loses any."""
    x, w = draw("bf16", 256, "normal", 0, 0, 0)
    narrow, wide = (
        np.subtract(*blocks.chain(x, w, step)[::-1])
        for step in (hopper_mma("bf16"), replace(hopper_mma("bf16"), fraction=18))
    )
    assert 64 * np.median(narrow) < np.median(wide)


@pytest.mark.parametrize("value", [np.inf, np.nan, -np.inf])
def test_what_is_not_finite_is_not_certified(value: float) -> None:
    x, w = draw("bf16", 64, "normal", 0, 2, 0)
    x[1, 40] = value
    first, last = blocks.chain(x, w, hopper_mma("bf16"))
    assert np.isneginf(first[1]).all() and np.isposinf(last[1]).all()
    assert np.isfinite(first[0]).all() and np.isfinite(last[0]).all()


def test_a_wider_grid_than_the_arithmetic_says_is_noticed() -> None:
    """The interval is of one arithmetic: with fewer bits than it has, results fall outside."""
    x, w = draw("bf16", 512, "normal", 0, 1, 0)
    first, last = blocks.chain(x, w, hopper_mma("bf16"))
    coarse: BlockFma = replace(hopper_mma("bf16"), fraction=20)
    y = dot(x, w, Chain(), coarse)
    assert not ((first <= y) & (y <= last)).all()
