"""The CPU engine under the portable contracts, every instruction set against the contract."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from samebits import ops
from samebits.bits import view
from samebits.contract import portable_attention, portable_linear, portable_row
from samebits.engines import family
from samebits.engines.cpu import numbers

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@pytest.fixture(autouse=True)
def portable(isa: str) -> Iterator[None]:
    family.put_in_force("portable")
    yield
    family.put_in_force("device")


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0, wide: bool = True) -> torch.Tensor:
    """Numbers of many magnitudes (of one for fp16, which would overflow)."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=g)
    if wide and dtype is not torch.float16:
        x *= torch.exp2(torch.randint(-18, 18, shape, generator=g).float())
    return x.to(dtype)


def same(got: Any, want: Any) -> None:
    assert got.dtype is want.dtype
    assert torch.equal(view(got), view(want)), (view(got) != view(want)).sum()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 5, 7), (1, 64, 333), (3, 37, 100), (7, 40, 1030), (70, 33, 800), (150, 20, 40),
     (5, 3, 17), (40, 2, 50), (2, 3, 0), (6, 32, 16), (17, 33, 4200)],
)  # fmt: skip
def test_products_are_chains(dtype: torch.dtype, m: int, n: int, k: int) -> None:
    x, w, b = (drawn(*s, dtype=dtype, seed=i) for i, s in enumerate(((m, k), (n, k), (n,))))
    contract = portable_linear(DTYPES[dtype], DTYPES[dtype])
    same(ops.linear(x, w, b), contract.evaluate(x, w, b, dtype))
    same(ops.linear(x, w.t().contiguous().t()), contract.evaluate(x, w, None, dtype))
    same(ops.linear(x, w, out_dtype=torch.float32), contract.evaluate(x, w))
    wide = drawn(n, 3 * max(k, 1), dtype=dtype)[:, ::3][:, :k]
    same(ops.linear(x, wide), contract.evaluate(x, wide.contiguous(), None, dtype))


@cache
def deep() -> tuple[torch.Tensor, ...]:
    """x, w, and what the contract makes of them."""
    x, w = (drawn(r, 70001, dtype=torch.float32, seed=r, wide=False) for r in (1, 3))
    return x, w, portable_linear("fp32", "fp32").evaluate(x, w)  # type: ignore[return-value]


def test_deep_chains_are_packed_slab_by_slab() -> None:
    x, w, want = deep()
    again = torch.arange(35)
    same(ops.linear(x, w), want)
    left, right, want = x[again * 0], w[again % 3], want[again * 0][:, again % 3]
    same(ops.linear(left, right), want)
    same(ops.mm(left.t().contiguous().t(), right.t().contiguous()), want)
    same(ops.dot(x[0], w[1]), want[0, 1])


def test_a_chain_that_underflows_keeps_its_sign() -> None:
    x, w = torch.full((5, 17), -1e-30), torch.full((20, 17), 1e-20)
    y = ops.linear(x, w)
    assert bool((y == 0).all()) and bool(y.signbit().all())
    same(y, portable_linear("fp32", "fp32").evaluate(x, w))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_is_what_a_gpu_writes(dtype: torch.dtype) -> None:
    x, w = drawn(9, 20, dtype=dtype, wide=False), drawn(30, 20, dtype=dtype, wide=False)
    x[3, 4], x[5, 5], w[2, 5] = float("nan"), float("inf"), 0
    y = ops.linear(x, w)
    same(y, portable_linear(DTYPES[dtype], DTYPES[dtype]).evaluate(x, w, None, dtype))
    nan = torch.iinfo(view(y).dtype).max
    assert set(view(y)[y.isnan()].tolist()) == {nan}
    assert set(view(ops.exp(x))[x.isnan()].tolist()) == {nan}
    turned = torch.full((4, 6), float("nan"), dtype=dtype).t()[::2]
    numbers.written(turned)
    assert set(view(turned).flatten().tolist()) == {nan}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 3, 16, 17, 100, 1000, 1024, 1025, 8192, 8193, 20000])
def test_rows_have_the_wide_tree(dtype: torch.dtype, n: int) -> None:
    name = DTYPES[dtype]
    x, scores = drawn(3, n, dtype=dtype), drawn(3, n, dtype=dtype, wide=False) * 3
    weight, bias = drawn(n, dtype=dtype, wide=False), drawn(n, dtype=dtype, wide=False, seed=1)

    def holds(op: str, got: Any, *operands: torch.Tensor, **options: float) -> None:
        contract = portable_row(op, name, name)
        same(got, contract.evaluate(*operands, out_dtype=dtype, **options))  # type: ignore[arg-type]

    holds("sum", ops.sum(x, -1), x)
    holds("mean", ops.mean(x, -1), x)
    holds("var", ops.var(x, -1, correction=0), x, correction=0)
    holds("norm", ops.vector_norm(x, 2, -1), x)
    holds("rms_norm", ops.rms_norm(x, (n,), weight, 1e-5), x, weight, eps=1e-5)
    holds("layer_norm", ops.layer_norm(x, (n,), weight, bias, 1e-5), x, weight, bias, eps=1e-5)
    holds("softmax", ops.softmax(scores, -1), scores)
    holds("log_softmax", ops.log_softmax(scores, -1), scores)
    holds("logsumexp", ops.logsumexp(scores, -1), scores)
    everywhere = portable_row("log_softmax", name, name).evaluate(scores, out_dtype=dtype)
    ids = torch.tensor([0, n - 1, n // 2])
    same(ops.token_logprob(scores, ids), everywhere[torch.arange(3), ids])  # type: ignore[index]


def test_rows_may_lie_anywhere() -> None:
    x = drawn(50, 6, 9000 // 50, dtype=torch.float32)
    contract = portable_row("sum", "fp32", "fp32")
    same(ops.sum(x, 0), contract.evaluate(x.permute(1, 2, 0).contiguous()))
    same(ops.sum(x, (0, 2)), contract.evaluate(x.permute(1, 0, 2).reshape(6, -1)))
    long = drawn(40000, 3, dtype=torch.float32)
    same(ops.sum(long, 0), contract.evaluate(long.t().contiguous()))
    soft = drawn(300, 4, dtype=torch.float32, wide=False)
    expected = portable_row("softmax", "fp32", "fp32").evaluate(soft.t().contiguous())
    same(ops.softmax(soft, 0), expected.t().contiguous())  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 17, 100, 1025, 8193, 17000])
def test_columns_have_the_bits_of_rows(dtype: torch.dtype, n: int) -> None:
    """Vectors across results, and a result at a time."""
    for width in (4, 17, 130):
        x = drawn(n, width, dtype=dtype, seed=width)
        x[n // 2, 1], x[1, 2], x[:, 3] = float("nan"), float("inf"), -0.0
        rows = x.t().contiguous()
        for op in (ops.sum, ops.var, ops.nansum, ops.prod):
            same(op(x, 0), op(rows, -1))  # type: ignore[operator]
        for order in (0, 1, 2, float("inf")):
            same(ops.vector_norm(x, order, 0), ops.vector_norm(rows, order, -1))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_rows_with_what_is_not_finite(value: float) -> None:
    x = drawn(4, 9000, dtype=torch.float32, wide=False)
    x[0, 5], x[1], x[2, 8500] = value, value, value
    for op in ("softmax", "log_softmax", "logsumexp", "sum"):
        got = getattr(ops, op)(x, -1)
        same(got, portable_row(op, "fp32", "fp32").evaluate(x))


@cache
def attended(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q, k, v, and what the contract makes of them: the same for every instruction set."""
    q, k, v = (drawn(2, h, t, 24, dtype=dtype, wide=False, seed=i)
               for i, (h, t) in enumerate(((4, 9), (2, 700), (2, 700))))  # fmt: skip
    contract = portable_attention(DTYPES[dtype])
    wide = [t.repeat_interleave(2, 1) for t in (k, v)]
    out = contract.evaluate(q, *wide, causal=True, out_dtype=dtype)
    return q, k, v, out, contract.logsumexp(q, *wide, causal=True)  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_is_rounded_once(dtype: torch.dtype) -> None:
    q, k, v, out, sums = attended(dtype)
    got, lse = ops.attention(q, k, v, causal=True, q_start=691, return_lse=True)
    same(got, out)
    same(lse, sums)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_packed_rows_goes_where_it_is_told(dtype: torch.dtype) -> None:
    """Widened in the kernels' tiles: results have the type of q, and nothing lies behind them."""
    rows, ends = drawn(700, 2, 24, dtype=dtype, wide=False), torch.tensor([0, 3, 700])
    keys = drawn(22, 32, 2, 24, dtype=dtype, wide=False, seed=1)
    pages, lens = torch.stack((torch.arange(22), torch.arange(22).flip(0))), torch.tensor([3, 697])
    wide = rows.float(), keys.float()
    want = ops.attention_paged(wide[0], wide[1], wide[1], pages, lens, ends).to(dtype)
    frame = torch.full((702, 2, 24), 7.0, dtype=dtype)
    ops.attention_paged(rows, keys, keys, pages, lens, ends, out=frame[1:-1])
    same(frame[1:-1], want)
    assert bool((frame[0] == 7).all() and (frame[-1] == 7).all())
    want = ops.attention_varlen(*3 * (wide[0],), ends, ends, causal=True).to(dtype)
    ops.attention_varlen(rows, rows, rows, ends, ends, causal=True, out=frame[1:-1])
    same(frame[1:-1], want)
    assert bool((frame[0] == 7).all() and (frame[-1] == 7).all())


def test_threads_do_not_matter() -> None:
    x, w = drawn(64, 700, dtype=torch.float32), drawn(90, 700, dtype=torch.float32)
    rows = drawn(2, 300000, dtype=torch.float32)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append((ops.linear(x, w), ops.sum(rows, -1), ops.softmax(rows, -1)))
    torch.set_num_threads(before)
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            same(a, b)
    assert np.isfinite(found[0][0].numpy()).all()
