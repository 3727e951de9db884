"""Balls: they hold what they must, computed exactly with fractions and with mpmath."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.contract import numerics as nx
from samebits.contract.intervals.ball import EXACT, ROUNDED, Ball, Steps, ball

NUMBERS = st.floats(-1e6, 1e6, width=32)


def one(center: float, radius: float = 0.0) -> Ball:
    return Ball(np.array([center]), np.array([radius]))


def holds(b: Ball, x: Fraction) -> bool:
    low, high = b.ends
    return Fraction(float(low[0])) <= x <= Fraction(float(high[0]))


@given(NUMBERS, NUMBERS, st.floats(0, 2), st.floats(-1, 1), st.floats(-1, 1))
def test_every_number_of_two_balls(a: float, b: float, r: float, s: float, t: float) -> None:
    p, q = Fraction(a) + Fraction(r) * Fraction(s), Fraction(b) + Fraction(r) * Fraction(t)
    x, y = one(a, r), one(b, r)
    assert holds(EXACT.add(x, y), p + q)
    assert holds(EXACT.sub(x, y), p - q)
    assert holds(EXACT.mul(x, y), p * q)
    with np.errstate(all="ignore"):
        low, high = (float(end[0]) for end in EXACT.div(x, y).ends)
    if abs(b) <= r:
        assert (low, high) == (-np.inf, np.inf)
    elif np.isfinite(low):
        assert Fraction(low) <= p / q <= Fraction(high)


@given(st.floats(0, 1e6, width=32), st.floats(0, 1), st.floats(0, 1))
def test_square_roots(a: float, r: float, s: float) -> None:
    low, high = (Fraction(float(end[0])) for end in EXACT.sqrt(one(a, r)).ends)
    x = Fraction(a) + Fraction(r) * Fraction(s)
    assert max(low, Fraction(0)) ** 2 <= x <= high**2


@given(st.floats(-80, 80, width=32), st.floats(0, 0.5), st.sampled_from((-1, 1)))
def test_functions(a: float, r: float, s: int) -> None:
    mp = pytest.importorskip("mpmath")
    mp.mp.prec = 120
    x = mp.mpf(a) + s * mp.mpf(r)
    low, high = (float(end[0]) for end in EXACT.exp(one(a, r)).ends)
    assert low <= mp.exp(x) <= high
    positive = abs(a) + 1
    low, high = (float(end[0]) for end in EXACT.log(one(positive, r)).ends)
    assert low <= mp.log(mp.mpf(positive) + s * mp.mpf(r)) <= high


@given(NUMBERS, NUMBERS)
def test_rounded_steps_hold_fp32_results(a: float, b: float) -> None:
    x, y = np.float32(a), np.float32(b)
    for name, result in (
        ("add", nx.add32(x, y)), ("sub", nx.sub32(x, y)), ("mul", nx.mul32(x, y)),
        ("div", nx.div32(x, y)),
    ):  # fmt: skip
        if np.isfinite(result):
            found = getattr(ROUNDED, name)(one(float(x)), one(float(y)))
            assert holds(found, Fraction(float(result))), name


@pytest.mark.parametrize("steps", [EXACT, ROUNDED], ids=["exact", "rounded"])
def test_division_by_what_may_be_zero_says_nothing(steps: Steps) -> None:
    with np.errstate(all="ignore"):
        low, high = steps.div(one(1), one(0.5, 0.5)).ends
    assert low[0] == -np.inf and high[0] == np.inf


def test_sums_in_every_order_are_inside() -> None:
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.standard_normal(200), rng.integers(-8, 9, 200)).astype(np.float32)
    low, high = ROUNDED.sum(Ball.exactly(x)).ends
    seen = []
    for _ in range(50):
        total = np.float32(0)
        for term in rng.permutation(x):
            total = nx.add32(total, term)
        seen.append(float(total))
    assert low <= min(seen) and max(seen) <= high
    assert len(set(seen)) > 1


def test_a_radius_is_widened_by_the_center_s_own_rounding() -> None:
    assert ball(np.array([1.0]), 0.0).radius[0] >= 2.0**-53
    assert (Ball.exactly(np.float32([1, 2])).radius == 0).all()
