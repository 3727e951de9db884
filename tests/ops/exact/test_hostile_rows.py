"""Exact rows made to mislead their first step, against fractions: every instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch

from exact_samples import DTYPES
from samebits import bits, ops
from samebits.contract.exact.integers import rounded
from samebits.engines.cpu import exact as engine
from samebits.plan import contract_of

#: The first step adds blocks of 1024 in accumulators that it places by the first 64 elements.
LENGTHS = (64, 1024, 2140)
FRACTION = {"fp32": 23, "bf16": 7, "fp16": 10}
LOWEST = {"fp32": -149, "bf16": -133, "fp16": -24}


def hostile(name: str, n: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Rows of n numbers by what is hostile about them."""
    dtype, top = DTYPES[name], torch.finfo(DTYPES[name]).max
    g = torch.Generator().manual_seed(n)
    usual = torch.randn(n, generator=g)
    tiny = 2.0 ** LOWEST[name]

    def at(row: torch.Tensor, changes: dict[int, float]) -> torch.Tensor:
        row = row.to(dtype)
        for i, v in changes.items():
            row[i % n] = v
        return row

    yield "a large one behind the first block", at(usual, {-1: top / 4})
    yield "it comes and goes", at(usual, {n // 2: top / 4, n // 2 + 1: -top / 4})
    yield (
        "a step out of the accumulator and back, in one lane",
        at(usual, {n - 3: 300.0, (n - 3) - 16: -300.0}),
    )
    yield "the first elements are far larger", at(usual * 2.0**-10, dict.fromkeys(range(64), 2048))
    yield "the first elements are zero", at(usual, dict.fromkeys(range(64), 0.0))
    yield "all of one sign", at(usual.abs() + 1, {})
    yield "growing", at(torch.arange(n) * 1.5, {})
    yield "a tie", at(torch.zeros(n), {0: 1.0, n - 1: 2.0 ** -(FRACTION[name] + 1)})
    yield (
        "above a tie",
        at(torch.zeros(n), {0: 1.0, n - 1: 2.0 ** -(FRACTION[name] + 1), n // 2: tiny}),
    )
    yield (
        "below a tie",
        at(torch.zeros(n), {0: 1.0, n - 1: 2.0 ** -(FRACTION[name] + 1), n // 2: -tiny}),
    )
    yield "nothing is left", torch.cat([at(usual, {}), -at(usual, {})])[torch.randperm(2 * n)]
    yield (
        "one subnormal is left",
        torch.cat([at(usual, {}), -at(usual, {}), at(torch.zeros(1), {0: tiny})]),
    )
    yield "subnormals", at(torch.zeros(n), {}) + (usual * 3).round().to(dtype) * tiny
    yield "the largest", at(torch.full((n,), top), dict.fromkeys(range(1, n, 2), -top))
    yield (
        "overflow by a unit",
        at(torch.zeros(n), {0: top, n - 1: top * 2.0 ** -(FRACTION[name] + 1)}),
    )
    words = torch.randint(-(2**31), 2**31, (n,), generator=g, dtype=torch.int64)
    kind = torch.int32 if name == "fp32" else torch.int16
    shift = 0 if name == "fp32" else 16
    yield "any words", (words >> shift).to(kind).view(dtype).nan_to_num(0.0, 1.0, -1.0)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", DTYPES)
def test_sums_are_those_of_fractions(name: str, n: int, isa: str) -> None:
    for what, row in hostile(name, n):
        total = sum((Fraction(v) for v in row.double().tolist()), Fraction(0))
        unit = 2 ** -LOWEST[name]
        for out in {name, "fp32"}:
            want = rounded(int(total * unit), LOWEST[name], out)
            got = ops.exact.sum(row, dtype=DTYPES[out]).float().item()
            assert got.hex() == float(want).hex(), what
            turned = ops.exact.sum(row.flip(0), dtype=DTYPES[out]).float().item()
            assert turned.hex() == got.hex(), what


@pytest.mark.parametrize("op", ["mean", "norm", "rms_norm", "layer_norm", "softmax", "logsumexp"])
@pytest.mark.parametrize("name", DTYPES)
def test_what_is_made_of_sums(op: str, name: str, isa: str) -> None:
    contract = contract_of(op, dtype=name, device="exact")
    compute = {
        "mean": lambda x: ops.exact.mean(x, -1),
        "norm": lambda x: ops.exact.vector_norm(x, -1),
        "rms_norm": lambda x: ops.exact.rms_norm(x, eps=1e-5),
        "layer_norm": ops.exact.layer_norm,
        "softmax": ops.exact.softmax,
        "logsumexp": lambda x: ops.exact.logsumexp(x, -1),
    }[op]
    for what, row in hostile(name, 1160):
        assert bits.equal(compute(row[None]), contract.evaluate(row[None])), what


def test_inf_and_nan_behind_the_first_block() -> None:
    x = torch.randn(6, 3000)
    x[0, 2000], x[1, 2000], x[2, 70], x[3, 2999] = torch.inf, torch.nan, -torch.inf, torch.inf
    x[3, 5], x[4, 1030], x[4, 1031] = -torch.inf, torch.inf, torch.inf
    y = ops.exact.sum(x, -1)
    assert y[:5].tolist()[0] == torch.inf and y[2] == -torch.inf and y[4] == torch.inf
    assert y.view(torch.int32)[[1, 3]].tolist() == [0x7FC00000] * 2 and y[5].isfinite()


def test_usual_rows_are_not_summed_twice() -> None:
    """The slow step is for what needs it: no row of random numbers does."""
    for name, dtype in DTYPES.items():
        x = torch.randn(300, 4096, generator=torch.Generator().manual_seed(3)).to(dtype)
        for out in {dtype, torch.float32}:
            assert engine.rows(x, out)[1] == 0, name


@pytest.mark.parametrize("kind", ["softmax", "log_softmax", "logsumexp"])
def test_one_long_row_is_shared_by_threads(kind: str) -> None:
    x = torch.randn(1, 150_001) * 4
    x[0, 140_000] = 30
    together = engine.softmax(kind, x, torch.float32)
    assert bits.equal(together, engine.softmax(kind, x.expand(40, -1), torch.float32)[:1])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert bits.equal(engine.softmax(kind, x, torch.float32), together)
    finally:
        torch.set_num_threads(before)
