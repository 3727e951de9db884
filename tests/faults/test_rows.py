"""Group L, F1 and Q2: row reductions, running sums, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from faults.properties import (
    FLOATS,
    Pairs,
    holds,
    position,
    repeats,
    row,
    stock_fails,
    threads,
    values,
)
from samebits import bits, mode

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("length", [1765, 1766, 1768])
def test_f1_identical_rows_of_odd_length(dtype: torch.dtype, length: int) -> None:
    x = values(4, 17, length, dtype=dtype)
    rows = x[:1, :1].expand(4, 17, length).contiguous()
    functions: dict[str, Function] = {
        "softmax": lambda t: t.softmax(-1),
        "log_softmax": lambda t: t.log_softmax(-1),
        "sum": lambda t: t.sum(-1),
        "mean": lambda t: t.mean(-1),
        "var": lambda t: t.var(-1),
        "layer_norm": lambda t: F.layer_norm(t, (length,)),
        "norm": lambda t: t.norm(dim=-1),
    }

    def pairs() -> Pairs:
        for name, f in functions.items():
            got = f(rows)
            yield name, got[:1, :1].expand_as(got), got
            yield from position(f, x.flatten(0, 1)[:13])

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_l2_norms_across_many_rows(dtype: torch.dtype) -> None:
    """Leading sizes that cross 2**13 and 2**14 rows."""
    w, b = values(72, dtype=dtype, seed=1), values(72, dtype=dtype, seed=2)
    x = values(16500, 72, dtype=dtype)
    functions: list[Function] = [
        lambda t: F.layer_norm(t.tanh(), (72,), w, b),
        lambda t: F.rms_norm(t, (72,), w),
        lambda t: F.group_norm(t, 8, w, b),
    ]

    def pairs() -> Pairs:
        for f in functions:
            yield from row(f, x, (1, 23, 24, 8191, 8192, 8193, 16384, 16385))

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_l3_running_sums(dtype: torch.dtype) -> None:
    x = values(100_000, dtype=dtype)
    table = values(3, 1000, dtype=dtype, seed=1)

    def pairs() -> Pairs:
        whole = x.cumsum(0)
        for k in (1, 2, 15, 16, 17, 1023, 1024, 1025, 38400, 99_999):
            yield f"prefix of {k}", whole[:k], x[:k].cumsum(0)
        yield from repeats(lambda: x.cumsum(0), 5)
        yield from threads(lambda: x.cumsum(0))
        for f in (lambda t: t.cumsum(1), lambda t: (t.abs() + 0.5).cumprod(1)):
            yield from row(f, table, (1, 2))
            yield "prefix", f(table)[:, :77], f(table[:, :77])
        yield "other axis", table.cumsum(1), table.t().contiguous().cumsum(0).t()

    holds(pairs)


def test_l5_log_softmax_of_stock_is_invariant_and_check_says_so() -> None:
    """Negative control: where stock holds, the check must not report a fault."""
    x = values(6, 40960)

    def pairs() -> Pairs:
        yield from row(lambda t: t.log_softmax(-1), x, (1, 2, 5))

    with mode.stock():
        assert all(bits.equal(a, b) for _, a, b in pairs())
    report = sb.check(
        lambda t: t.log_softmax(-1), x[:, :4096], promises=["rows", "position"], costs=False
    )
    assert {test.stock.verdict for test in report.tests if test.stock} == {"same"}
    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("v", [1000, 50257])
def test_q2_logprobs_over_a_vocabulary(dtype: torch.dtype, v: int) -> None:
    hidden, head = values(9, 64, dtype=dtype), values(v, 64, dtype=dtype, seed=1)
    f = lambda t: F.linear(t, head).float().log_softmax(-1)  # noqa: E731

    def pairs() -> Pairs:
        yield from row(f, hidden, (1, 2, 3, 5, 8))
        yield from position(f, hidden)

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)
