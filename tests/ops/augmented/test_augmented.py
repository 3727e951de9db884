"""Augmented operations and sums in bins: against rationals, on every instruction set."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import samebits
from samebits import bits
from samebits.contract.exact import augmented as definition
from samebits.contract.exact import binned
from samebits.errors import DTypeError, SamebitsError, ShapeError

OPS = {
    "addition": samebits.augmented_addition,
    "subtraction": samebits.augmented_subtraction,
    "multiplication": samebits.augmented_multiplication,
}
TYPES = {np.float32: (24, 127, np.uint32), np.float64: (53, 1023, np.uint64)}
Pair = tuple[np.ndarray, np.ndarray]


def cases(dtype: type) -> dict[str, Pair]:
    digits, top, word = TYPES[dtype]
    rng = np.random.default_rng(0)
    info = np.finfo(dtype)
    unit = 2.0 ** (top - digits + 1)  # of the largest numbers
    edges = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, info.max, -info.max, info.tiny, unit,
             unit / 2, -unit / 2, unit / 2 * (1 + float(info.eps)), info.smallest_subnormal,
             -info.smallest_subnormal, 1 + info.eps]  # fmt: skip
    x, y = (a.ravel() for a in np.meshgrid(np.array(edges, dtype), np.array(edges, dtype)))

    def words() -> np.ndarray:
        return rng.integers(0, np.iinfo(word).max, 400, word, endpoint=True).view(dtype)

    def near(size: int) -> np.ndarray:
        return (rng.integers(-size, size, 400) * 2.0 ** rng.integers(-digits - 3, 4, 400)).astype(
            dtype
        )

    def products_that_underflow() -> np.ndarray:
        scale = 2.0 ** rng.integers(
            (2 - top) // 2 - digits - 8, (2 - top) // 2 - digits // 2 + 8, 400
        )
        return (rng.integers(-(2**digits), 2**digits, 400) * scale).astype(dtype)

    return {
        "edges": (x.copy(), y.copy()),
        "words": (words(), words()),
        "near": (near(2**digits), near(2**digits)),
        "ties": (near(64), near(2**digits)),
        "underflow": (products_that_underflow(), products_that_underflow()),
    }


def exact(op: str, x: float, y: float) -> Fraction:
    a, b = Fraction(x), Fraction(y)
    return a * b if op == "multiplication" else a + b if op == "addition" else a - b


def neighbours(r: np.floating, dtype: type) -> list[Fraction]:
    with np.errstate(over="ignore"):
        both = np.nextafter(r, dtype(-np.inf)), np.nextafter(r, dtype(np.inf))
    return [Fraction(float(v)) for v in both if np.isfinite(v)]


@pytest.mark.parametrize("kind", ["edges", "words", "near", "ties", "underflow"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_definition_against_rationals(op: str, dtype: type, kind: str) -> None:
    x, y = cases(dtype)[kind]
    digits, top, _ = TYPES[dtype]
    ties = 0
    for a, b, r, e in zip(x, y, *definition.augmented(op, x, y), strict=True):
        if not (np.isfinite(a) and np.isfinite(b)):
            with np.errstate(all="ignore"):
                plain = a * b if op == "multiplication" else a + b if op == "addition" else a - b
            assert np.array_equal(r, plain, equal_nan=True)
            assert np.array_equal(e, plain, equal_nan=True)
            continue
        value = exact(op, float(a), float(b))
        if np.isinf(r):  # beyond half a unit above the largest number; at half a unit it is finite
            assert abs(value) > Fraction(2) ** (top + 1) - Fraction(2) ** (top - digits)
            assert e == r
            continue
        distance = abs(value - Fraction(float(r)))
        others = neighbours(r, dtype)
        for other in others:
            assert distance <= abs(value - other)
            if distance == abs(value - other) and distance:  # a tie: toward zero
                assert abs(Fraction(float(r))) < abs(other)
                ties += 1
        rest = value - Fraction(float(r))
        if not rest:
            assert e == 0 and np.signbit(e) == np.signbit(r)
        elif op == "multiplication" and Fraction(float(e)) != rest:  # the error underflows
            half = Fraction(float(np.finfo(dtype).smallest_subnormal)) / 2
            assert abs(rest - Fraction(float(e))) <= half
        else:
            assert Fraction(float(e)) == rest
    assert ties or kind != "ties" or op == "multiplication"


@pytest.mark.parametrize("kind", ["edges", "words", "near", "ties", "underflow"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_engine_against_the_definition(op: str, dtype: type, kind: str, isa: str) -> None:
    x, y = cases(dtype)[kind]
    got = OPS[op](torch.from_numpy(x), torch.from_numpy(y))
    for g, want in zip(got, definition.augmented(op, x, y), strict=True):
        assert bits.equal(g, torch.from_numpy(np.ascontiguousarray(want)))


def test_ties_go_toward_zero_where_hardware_goes_to_even() -> None:
    one = torch.tensor([1 + 2.0**-23, -1 - 2.0**-23])
    half = torch.tensor([2.0**-24, -(2.0**-24)])
    result, error = samebits.augmented_addition(one, half)
    assert result.tolist() == one.tolist() and error.tolist() == half.tolist()
    assert (one + half).tolist() != one.tolist()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("octaves", [0, 6, 50])
def test_binned_sums_against_integers(dtype: type, octaves: int, isa: str) -> None:
    rng = np.random.default_rng(octaves)
    for rows, n in ((1, 0), (3, 1), (2, 17), (2, 5000)):
        x = rng.standard_normal((rows, n)) * 2.0 ** rng.integers(-octaves, octaves + 1, (rows, n))
        for scale in (1.0, 2.0**70, 2.0**-126, 2.0**-140):
            with np.errstate(over="ignore"):
                row = (x * scale).astype(dtype)
            want = binned.binned_sum(row)
            got = samebits.binned_sum(torch.from_numpy(row), 1)
            assert bits.equal(got, torch.from_numpy(want))
            for r, y in zip(row, want, strict=True):
                if np.isfinite(y):
                    bound = binned.error_bound(
                        n, float(np.abs(r).max(initial=0)), float(y), row.dtype
                    )
                    true = sum((Fraction(float(v)) for v in r), Fraction(0))
                    assert abs(true - Fraction(float(y))) <= Fraction(bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binned_sums_have_no_order(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    x, size = (torch.randn(100_000, dtype=dtype, generator=g) for _ in range(2))
    x = x * torch.exp(4 * size)
    turned = [x[torch.randperm(len(x), generator=g)].sum() for _ in range(20)]
    assert any(not bits.equal(t, turned[0]) for t in turned), "stock depends on the order"
    want = samebits.binned_sum(x)
    for _ in range(3):
        assert bits.equal(samebits.binned_sum(x[torch.randperm(len(x))]), want)
    assert bits.equal(samebits.binned_sum(x.view(4, -1).T), want)


def test_binned_sums_of_many_terms() -> None:
    """2^23 terms at the top of a bin fill 64 bits, in units of the bin."""
    for n in (2**23, 2**24):
        ones = torch.ones(n, dtype=torch.float64)
        assert samebits.binned_sum(ones).item() == n
        assert samebits.binned_sum(-ones).item() == -n
        assert samebits.binned_sum(ones.float()).item() == n


def test_binned_sums_of_inf_and_nan() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[1, inf, 2], [inf, 1, -inf], [nan, 1, 2], [-inf, 0, 0], [-0.0, -0.0, 0]])
    y = samebits.binned_sum(x, 1)
    assert y[0] == inf and y[1].isnan() and y[2].isnan() and y[3] == -inf
    assert y[4] == 0 and not torch.signbit(y[4])
    assert samebits.binned_sum(x, (0, 1), keepdim=True).shape == (1, 1)
    top = torch.full((3,), torch.finfo(torch.float32).max)
    assert samebits.binned_sum(top).item() == inf
    assert samebits.binned_sum(torch.cat([top, -top])).item() == 0


def test_negations_that_are_still_to_be_done() -> None:
    x = torch.randn(3)
    lazy = torch._neg_view(x)
    for op in OPS.values():
        for a, b in zip(op(lazy, x), op(-x, x), strict=True):
            assert bits.equal(a, b)
    assert bits.equal(samebits.binned_sum(lazy), samebits.binned_sum(-x))


def test_what_is_not_covered_is_refused() -> None:
    x = torch.randn(3)
    with pytest.raises(DTypeError, match="exactly"):
        samebits.augmented_addition(x.half(), x.half())
    with pytest.raises(DTypeError, match="convert one"):
        samebits.augmented_addition(x, x.double())
    with pytest.raises(ShapeError):
        samebits.augmented_multiplication(x, torch.randn(2))
    with pytest.raises(SamebitsError, match="backward"):
        samebits.binned_sum(x.clone().requires_grad_())
    assert samebits.augmented_addition(torch.randn(2, 1), x)[0].shape == (2, 3)
