"""The definition of exact sums against rational numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.contract import ExactContract, parse
from samebits.contract.exact.integers import exact_dot, exact_sum, rounded
from samebits.errors import ContractError, DTypeError, ShapeError
from samebits.plan import contract_of

words = st.integers(0, 2**32 - 1)


def fp32(word: int) -> np.float32:
    return np.uint32(word).view(np.float32)


def nearest(value: Fraction, dtype: str) -> float:
    """Rounded to nearest even by comparing distances: nothing in common with the definition."""
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    signed = torch.int32 if dtype == "fp32" else torch.int16
    low, high = 0, {"fp32": 0x7F800000, "bf16": 0x7F80, "fp16": 0x7C00}[dtype]
    limit = {"fp32": 2**128, "bf16": 2**128, "fp16": 2**16}[dtype]
    size = abs(value)

    def at(word: int) -> Fraction:
        x = torch.tensor([word], dtype=signed).view(kind).double().item()
        return Fraction(limit) if np.isinf(x) else Fraction(x)

    while high - low > 1:  # the last word that is not above it
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) <= size else (low, middle)
    below, above = size - at(low), at(low + 1) - size
    word = low if below < above or (below == above and low % 2 == 0) else low + 1
    x = torch.tensor([word], dtype=signed).view(kind).double().item()
    return float(-x if value < 0 else x)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@settings(max_examples=150, deadline=None)
@given(value=st.integers(-(2**80), 2**80), exponent=st.integers(-220, 60))
def test_rounding_against_distances(dtype: str, value: int, exponent: int) -> None:
    want = nearest(Fraction(value) * Fraction(2) ** exponent, dtype)
    got = rounded(value, exponent, dtype)
    assert got == want
    assert bool(np.signbit(got)) == (value < 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(words, words), min_size=0, max_size=12), words)
def test_a_dot_product_of_any_words(pairs: list[tuple[int, int]], term: int) -> None:
    x = np.array([[a for a, _ in pairs]], np.uint32).view(np.float32).reshape(1, len(pairs))
    w = np.array([[b for _, b in pairs]], np.uint32).view(np.float32).reshape(1, len(pairs))
    c = np.array([term], np.uint32).view(np.float32)
    y = exact_dot(x, w, c, "fp32")[0, 0]
    terms = [float(a) * float(b) for a, b in zip(x[0], w[0], strict=True)] + [float(c[0])]
    if any(np.isnan(t) for t in terms) or {np.inf, -np.inf} <= set(terms):
        assert y.view(np.uint32) == 0x7FC00000
    elif any(np.isinf(t) for t in terms):
        assert y in terms
    else:
        exact = sum((Fraction(float(a)) * Fraction(float(b)) for a, b in
                     zip(x[0], w[0], strict=True)), Fraction(float(c[0])))  # fmt: skip
        assert y == nearest(exact, "fp32")


def test_sums_of_subnormals_and_of_squares_that_leave_the_range() -> None:
    tiny = fp32(1)
    assert exact_sum(np.array([tiny, tiny, -fp32(3)])) == -tiny
    assert exact_sum(np.array([tiny, tiny]), squares=True).view(np.uint32) == 0
    big = np.float32(2.0**127)
    assert exact_sum(np.array([big, big, -big])) == big  # a chain would have met Inf
    assert exact_sum(np.array([big]), squares=True) == np.inf
    assert exact_sum(np.zeros((2, 0), np.float32)).tolist() == [0, 0]
    assert not np.signbit(exact_sum(np.float32([-0.0, -0.0])))
    assert np.signbit(exact_sum(np.float32([-1e-20, -1e-20]), "fp16"))  # underflows, is not zero


def test_one_rounding_where_two_would_differ() -> None:
    """1 + 2^-8 + 2^-30: fp32 drops the last bit, and then bf16 sees a tie."""
    x = np.float32([1, 2.0**-8, 2.0**-30])
    assert exact_sum(x, "bf16") == 1 + 2.0**-7
    assert torch.tensor(exact_sum(x).item()).bfloat16().item() == 1


def test_the_contract_is_data() -> None:
    c = contract_of("linear", dtype="bf16", device="exact")
    assert isinstance(c, ExactContract)
    assert parse(c.text) == c
    assert contract_of("mm", dtype="bf16", device="exact") == c
    assert c.id != contract_of("linear", dtype="fp16", device="exact").id
    assert "no tree" in c.render()
    for op in ("sum", "softmax", "rms_norm", "attention"):
        assert parse(contract_of(op, dtype="fp32", device="exact").text).op == op
    with pytest.raises(ContractError, match="no tree to draw"):
        c.render("svg")
    with pytest.raises(ContractError, match="has no tree"):
        contract_of("linear", dtype="bf16", device="exact", tree="chain")
    with pytest.raises(ContractError, match="not covered"):
        contract_of("linear", dtype="e4m3", device="exact")
    with pytest.raises(ContractError, match="no exact contract"):
        ExactContract("prod", "fp32", "fp32")


def test_operands_that_do_not_fit_are_refused() -> None:
    c = contract_of("linear", dtype="bf16", device="exact")
    x, w = torch.zeros(2, 3).bfloat16(), torch.zeros(4, 3).bfloat16()
    with pytest.raises(ShapeError):
        c.evaluate(x, w[:, :2])
    with pytest.raises(DTypeError):
        c.evaluate(x.float() + 1e-9, w)
    with pytest.raises(ContractError, match="not registered"):
        c.evaluate(x, w, engine="gpu")
    with pytest.raises(ContractError, match="rounds to bf16"):
        c.evaluate(x, w, out_dtype="fp16")
