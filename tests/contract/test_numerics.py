"""The NumPy primitives against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.contract import RowContract
from samebits.contract import numerics as nx

words = st.integers(0, 2**32 - 1)


def f32(word: int) -> np.float32:
    return np.uint32(word).view(np.float32)


def word(x: object) -> int:
    return int(np.float32(x).view(np.uint32))


def round_f32(q: Fraction, zero_sign: int) -> int:
    """The fp32 word of `q`, rounded to nearest even, from nothing but integers."""
    sign, a = (1, -q) if q < 0 else (0, q)
    if a == 0:
        return zero_sign << 31
    e = math.floor(math.log2(a.numerator) - math.log2(a.denominator)) + 1
    while a < Fraction(2) ** e:
        e -= 1
    quantum = Fraction(2) ** (max(e, -126) - 23)
    n = round(a / quantum)  # Python rounds Fractions half to even
    value = n * quantum
    if value >= Fraction(2) ** 128:
        return sign << 31 | 0x7F800000
    return sign << 31 | word(float(value))


def exact_fma(a: np.float32, b: np.float32, c: np.float32) -> int:
    if not all(map(math.isfinite, (a, b, c))):
        r = float(a) * float(b) + float(c)  # fp64 never overflows here, so Inf and NaN are right
        return 0x7FC00000 if math.isnan(r) else word(r)
    product, total = Fraction(float(a)) * Fraction(float(b)), Fraction(float(c))
    signs = (math.copysign(1, a) * math.copysign(1, b), math.copysign(1, c))
    both_negative = product == 0 and total == 0 and signs == (-1.0, -1.0)
    return round_f32(product + total, int(both_negative))


@given(words, words, words)
def test_fma_of_any_words(a: int, b: int, c: int) -> None:
    x, y, z = f32(a), f32(b), f32(c)
    assert word(nx.fma32(x, y, z)) == exact_fma(x, y, z)


@given(words, words, st.integers(-60, 60), st.integers(-3, 3), st.booleans())
def test_fma_near_ties_and_cancellation(a: int, b: int, shift: int, ulps: int, flip: bool) -> None:
    """c is put where the product's last bits decide: the places of double rounding."""
    x, y = f32(a), f32(b)
    with np.errstate(all="ignore"):
        p = np.float64(x) * np.float64(y)
        c = np.float32(p * 2.0**shift * (-1 if flip else 1))
    c = f32((word(c) + ulps) & 0xFFFFFFFF)
    assert word(nx.fma32(x, y, c)) == exact_fma(x, y, c)


def test_fma_where_rounding_twice_is_wrong() -> None:
    """Products a hair beside half an ulp of c: fp64 drops the hair, and the tie goes to even.

    m * n is 2^47 + r with a small r != 0, so the product is half an ulp of c times 1 + r / 2^47.
    """
    rng, naive_is_wrong = np.random.default_rng(5), 0
    for m in range(2**23 + 1, 2**23 + 6000, 2):
        n = round(2**47 / m)
        if not 0 < abs(m * n - 2**47) < 2**17 or n >= 2**24:
            continue
        p, q = np.float32(m), np.float32(n * 2.0**-48)
        c = np.float32(int(rng.integers(2**23, 2**24)))
        want = exact_fma(p, q, c)
        naive_is_wrong += word(np.float32(np.float64(p) * np.float64(q) + np.float64(c))) != want
        assert word(nx.fma32(p, q, c)) == want
    assert naive_is_wrong > 5


@given(words, words)
def test_add_and_mul(a: int, b: int) -> None:
    x, y = f32(a), f32(b)
    assert word(nx.add32(x, y)) == exact_fma(x, np.float32(1), y)
    zero = np.copysign(np.float32(0), x) * np.copysign(np.float32(1), y)
    assert word(nx.mul32(x, y)) == exact_fma(x, y, zero)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_every_16_bit_word_survives(kind: str) -> None:
    every = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    widen, narrow = {
        "bf16": (nx.bf16_to_f32, nx.f32_to_bf16), "fp16": (nx.fp16_to_f32, nx.f32_to_fp16),
    }[kind]  # fmt: skip
    wide = widen(every)
    back = narrow(wide)
    nan = np.isnan(wide)
    assert (back[~nan] == every[~nan]).all()
    assert set(back[nan].tolist()) == {0x7FC0 if kind == "bf16" else 0x7E00}
    assert set(wide[nan].view(np.uint32).tolist()) == {0x7FC00000}
    # ties go to the even neighbour, and just above or below a tie to the nearer one
    finite = every[np.isfinite(wide)]
    low = np.sort(widen(finite[finite < 0x8000]))
    tie = ((low[1:].astype(np.float64) + low[:-1]) / 2).astype(np.float32)
    chosen = narrow(tie)
    assert (chosen % 2 == 0).all()
    assert (widen(narrow(np.nextafter(tie, np.float32(np.inf)))) == low[1:]).all()
    assert (widen(narrow(np.nextafter(tie, np.float32(-1)))) == low[:-1]).all()


@given(st.integers(0, 70), st.integers(0, 2**32 - 1))
def test_lanes_dot_is_its_definition(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal((2, k)).astype(np.float32) for _ in range(2))
    got = nx.lanes16_dot(x, w)
    for m in range(2):
        for n in range(2):
            lanes = [np.float32(0)] * 16
            for i in range(k):
                lanes[i % 16] = nx.fma32(x[m, i], w[n, i], lanes[i % 16])
            for width in (8, 4, 2, 1):
                lanes = [lanes[i] + lanes[i + width] for i in range(width)]
            assert word(got[m, n]) == word(lanes[0])


def test_lanes_dot_broadcasts_batches() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 1, 2, 33)), rng.standard_normal((4, 5, 33))
    x, w = x.astype(np.float32), w.astype(np.float32)
    got = nx.lanes16_dot(x, w)
    assert got.shape == (3, 4, 2, 5)
    assert (got[1, 2].view(np.uint32) == nx.lanes16_dot(x[1, 0], w[2]).view(np.uint32)).all()


@pytest.mark.parametrize("n", [0, 1, 15, 16, 1023, 1024, 1025, 3 * 1024, 5 * 1024 + 7, 7168])
@pytest.mark.parametrize("kind", ["sum", "squares"])
def test_row_sum_is_its_definition(n: int, kind: nx.RowSumKind) -> None:
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((2, n)) * 2.0 ** rng.integers(-8, 8, (2, n))).astype(np.float32)
    leaves = [nx.lanes16_row(x[:, i : i + 1024], kind) for i in range(0, max(n, 1), 1024)]

    def tree(part: list[np.ndarray]) -> np.ndarray:
        """The binary counter's tree, said recursively: the largest power of two goes left."""
        if len(part) == 1:
            return part[0]
        left = 1 << ((len(part) - 1).bit_length() - 1)
        return tree(part[:left]) + tree(part[left:])

    got = nx.row_sum(x, kind)
    assert (got.view(np.uint32) == tree(leaves).astype(np.float32).view(np.uint32)).all()
    if n > 1024 and kind == "sum":
        assert (got != x.sum(-1, dtype=np.float32)).any() or n < 2000


@pytest.mark.parametrize("n", [1, 1024, 2049, 7000])
@pytest.mark.parametrize("kind", ["sum", "squares"])
def test_row_sum_is_the_tree_of_row_contracts(n: int, kind: nx.RowSumKind) -> None:
    x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
    walked = RowContract("sum", "fp32", "fp32").sum(x, kind)
    assert (walked.view(np.uint32) == nx.row_sum(x, kind).view(np.uint32)).all()


def test_zero_and_nan_of_a_row() -> None:
    assert word(nx.row_sum(np.full(5, -0.0, np.float32))) == 0  # chains start at +0
    assert word(nx.row_sum(np.array([np.inf, -np.inf], np.float32))) == 0x7FC00000
    assert word(nx.row_sum(np.array([1, np.nan], np.float32))) == 0x7FC00000
