"""Elementwise kernels: the contract's bits on every instruction set, wherever an element lies."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch

from engines.cpu.pointwise_cases import BINARY, DTYPES, UNARY, all_words, expected, pairs, samples
from samebits import bits
from samebits.contract.functions64 import fma64
from samebits.engines.cpu import pointwise
from samebits.errors import DTypeError


@cache
def unary_case(
    name: str, params: tuple[float, ...], dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    x = samples(12_000, 5) if dtype is torch.float32 else all_words(dtype)
    if name == "exp2_flush":  # defined up to 127
        x = x[~(x.float() > 127)]
    return x, expected(name, params, x)


@cache
def binary_case(
    name: str, params: tuple[float, ...], dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    a, b = pairs(dtype, 6_000)
    return a, b, expected(name, params, a, b)


@pytest.mark.parametrize(("name", "params"), UNARY)
def test_unary_has_the_bits_of_the_contract(isa: str, name: str, params: tuple[float, ...]) -> None:
    """Every value of bf16 and fp16, and random and special values of fp32."""
    for dtype in DTYPES:
        x, want = unary_case(name, params, dtype)
        got = pointwise.unary(name, x, *params).view(want.dtype)
        wrong = (got != want).nonzero()
        assert not len(wrong), (dtype, len(wrong), x[wrong[0]])


@pytest.mark.parametrize(("name", "params"), BINARY)
def test_binary_has_the_bits_of_the_contract(
    isa: str, name: str, params: tuple[float, ...]
) -> None:
    for dtype in DTYPES:
        a, b, want = binary_case(name, params, dtype)
        got = pointwise.binary(name, a, b, *params).view(want.dtype)
        wrong = (got != want).nonzero()
        assert not len(wrong), (dtype, len(wrong), a[wrong[0]], b[wrong[0]])


def strewn(x: torch.Tensor, step: int, offset: int) -> torch.Tensor:
    room = torch.full((step * x.numel() + offset,), torch.nan, dtype=x.dtype)
    return room[offset::step][: x.numel()].copy_(x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_element_does_not_know_its_place(isa: str, dtype: torch.dtype) -> None:
    x = samples(20_000, 8).to(dtype)[:50_001]  # several tasks, and a tail
    for name, params in (("silu", ()), ("gelu", ()), ("sin", ()), ("softplus", (0.7, 3.0))):
        whole = pointwise.unary(name, x, *params)
        assert bits.equal(whole[5:1000], pointwise.unary(name, x[5:1000], *params))
        assert bits.equal(whole, pointwise.unary(name, strewn(x, 3, 1), *params))
        parts = [pointwise.unary(name, x[n * (n - 1) // 2 :][:n], *params) for n in range(1, 41)]
        assert bits.equal(whole[:820], torch.cat(parts))
        square = x[:2500].reshape(50, 50)
        assert bits.equal(pointwise.unary(name, square.t(), *params).t().reshape(-1), whole[:2500])
    threads = torch.get_num_threads()
    try:
        results = []
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            results.append(pointwise.unary("tanh", x))
    finally:
        torch.set_num_threads(threads)
    assert bits.equal(results[0], results[1])
    assert bits.equal(results[0], results[2])


def test_results_are_laid_out_as_in_torch() -> None:
    x = torch.randn(4, 6, 5)
    views = (x, x.permute(2, 0, 1), x[:, ::2], x.transpose(0, 1)[1:], x[0, 0, 0], x[:0])
    for v in views:
        assert pointwise.unary("exp", v).stride() == torch.exp(v).stride()
    others = (x, x[:, :1], x[..., 0, None], x.permute(0, 1, 2), torch.randn(()), torch.randn(5))
    for a in others:
        for b in others:
            got, want = pointwise.binary("atan2", a, b), torch.atan2(a, b)
            assert got.stride() == want.stride()
            assert torch.allclose(got, want)
    columns, rows = torch.randn(6, 4).t(), torch.randn(4, 6)
    for a, b in ((columns, rows), (rows, columns), (columns, columns)):
        got = pointwise.binary("pow", a.abs(), b)
        assert got.stride() == torch.pow(a.abs(), b).stride()


def test_other_dtypes_are_refused() -> None:
    for x in (torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.int32),
              torch.ones(3, dtype=torch.complex64)):  # fmt: skip
        with pytest.raises(DTypeError, match="takes dense CPU tensors"):
            pointwise.unary("exp", x)
    with pytest.raises(DTypeError, match="one dtype"):
        pointwise.binary("pow", torch.ones(3), torch.ones(3, dtype=torch.bfloat16))


def test_fma64_rounds_once() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 3000)) * 2.0 ** rng.integers(-60, 60, (2, 3000))
    c = -a * b * rng.choice([1.0, 1.0 + 2.0**-52, 0.5, 1e-10], 3000)
    got = fma64(a, b, c)
    for x, y, z, r in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        assert r == exact.numerator / exact.denominator  # int / int is correctly rounded
