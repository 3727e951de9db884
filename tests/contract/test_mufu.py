"""The model of the special function unit against what an H200 gave."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from samebits.contract.mufu import ex2
from samebits.contract.numerics import CANONICAL_NAN


def test_ex2_has_the_bits_of_the_chip() -> None:
    recorded = np.load(Path(__file__).with_name("ex2_h200.npz"))
    x, y = recorded["x"].view(np.float32), recorded["y"]
    y = np.where(np.isnan(x), CANONICAL_NAN.view(np.int32), y)
    got = ex2(x).view(np.int32)
    assert np.array_equal(got, y), [
        (a, hex(b), hex(c)) for a, b, c in zip(x, got, y, strict=True) if b != c
    ][:5]


def test_a_result_is_within_two_units_and_shifts_exactly() -> None:
    x = -np.random.default_rng(0).random(4096).astype(np.float32)
    exact = np.exp2(x.astype(np.float64))
    assert (np.abs(ex2(x) - exact) / np.spacing(exact.astype(np.float32))).max() < 2.6
    whole = np.trunc(x * 2**20) / np.float32(2**20)
    assert np.array_equal(ex2(whole - 7), ex2(whole) * np.float32(2**-7))
    assert ex2(np.zeros((2, 0), np.float32)).shape == (2, 0)


def test_the_last_steps_below_a_power_of_two() -> None:
    x = np.array([0.9999998807907104, 1.9999998807907104], np.float32)
    assert ex2(x).view(np.int32).tolist() == [0x3FFFFFFF, 0x407FFFFF]  # of the chip
