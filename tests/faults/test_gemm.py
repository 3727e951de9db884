"""Group A: matrix products whose kernel follows the batch. F4: the tall and thin ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from faults.properties import (
    FLOATS,
    Pairs,
    chunks,
    every,
    holds,
    position,
    row,
    stock_fails,
    stock_is_known,
    threads,
    values,
)
from samebits import bits, ops

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 33, 64)


def test_machine_class() -> None:
    """Where stock's faults are not known, only the promises are tested."""
    if not stock_is_known():
        pytest.skip("which faults stock PyTorch shows was measured on another class of CPU")


@pytest.mark.parametrize("k", [64, 512, 1000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a1_linear_row_of_any_batch(k: int, dtype: torch.dtype) -> None:
    x, w, b = (values(*s, dtype=dtype, seed=k) for s in ((131, k), (k, k), (k,)))

    def pairs() -> Pairs:
        for layer in (lambda t: F.linear(t, w, b), lambda t: t @ w):
            yield from row(layer, x, SIZES)
        yield from position(lambda t: F.linear(t, w), x[:37])

    if dtype is torch.float32 and k == 1000:
        stock_fails(pairs)
    holds(pairs)


def test_a1_linear_wide_and_many_rows() -> None:
    x, w = values(512, 4096), values(4096, 4096, seed=1)

    def pairs() -> Pairs:
        yield from row(lambda t: F.linear(t, w), x, (1, 2, 6))

    stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a1_accumulators_any_layout_thread_and_instruction_set(dtype: torch.dtype) -> None:
    x, w = values(29, 333, dtype=dtype), values(77, 333, dtype=dtype, seed=1)
    holds(lambda: every(lambda t: F.linear(t, w), x, SIZES[:9]))
    holds(lambda: every(lambda t: ops.linear(t, w, out_dtype=torch.float32), x, SIZES[:9]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a2_any_partition_of_the_leading_axes(dtype: torch.dtype) -> None:
    x, w = values(100, 30, 8, dtype=dtype), values(8, 20, dtype=dtype, seed=1)

    def pairs() -> Pairs:
        whole = x @ w
        for size in (1, 2, 7, 50):
            yield f"3-D by {size}", whole, torch.cat([p @ w for p in x.split(size)])
            yield f"3-D by {size} in axis 1", whole, torch.cat([p @ w for p in x.split(size, 1)], 1)
        flat = x.reshape(3000, 8)
        yield "2-D and 3-D", whole.reshape(3000, 20), flat @ w
        for size in (1, 2, 50, 999):
            yield f"2-D by {size}", flat @ w, torch.cat([p @ w for p in flat.split(size)])
        yield "vectors", whole[7], torch.stack([v @ w for v in x[7]])
        yield "einsum", whole, torch.einsum("abk,kn->abn", x, w)

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a4_a_row_and_its_place(dtype: torch.dtype) -> None:
    x, w = values(1024, 512, dtype=dtype), values(640, 512, dtype=dtype, seed=1)

    def pairs() -> Pairs:
        alone = F.linear(x[:1], w)
        for m in (2, 17, 33, 128, 257, 1024):
            for place in (0, m // 2, m - 1):
                batch = x[:m].clone()
                batch[[0, place]] = batch[[place, 0]]
                yield f"row {place} of {m}", alone[0], F.linear(batch, w)[place]

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("m, k, n", [(8, 64, 8), (1, 64, 33), (64, 512, 128)])
def test_a8_batched_is_a_loop_of_products(dtype: torch.dtype, m: int, k: int, n: int) -> None:
    batch = 512 if m == 8 else 33
    a, b = values(batch, m, k, dtype=dtype), values(batch, k, n, dtype=dtype, seed=1)

    def pairs() -> Pairs:
        whole = torch.stack([x @ y for x, y in zip(a, b, strict=True)])
        for size in {1, 2, 31, batch // 2 - 1, batch // 2, batch}:
            yield f"bmm of {size}", whole[:size], torch.bmm(a[:size], b[:size])
        yield "matmul", whole, a @ b
        yield "einsum", whole, torch.einsum("bmk,bkn->bmn", a, b)
        zero = torch.zeros((), dtype=dtype)
        yield "baddbmm", whole, torch.baddbmm(zero.expand(batch, m, n), a, b, beta=0)
        yield "fewer rows", whole[:, : (m + 1) // 2], a[:, : (m + 1) // 2] @ b

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a12_one_row_is_no_other_operation(dtype: torch.dtype) -> None:
    a, b = values(64, 777, dtype=dtype), values(777, 555, dtype=dtype, seed=1)

    def pairs() -> Pairs:
        whole = a @ b
        yield from row(lambda t: t @ b, a, (1, 2, 3, 64))
        yield "vector @ matrix", whole[5], a[5] @ b
        yield "matrix @ vector", whole[:, 7], a @ b[:, 7]
        yield "mv", whole[:, 7], torch.mv(a, b[:, 7])
        yield "dot", whole[5, 7], torch.dot(a[5], b[:, 7])
        yield "inner", whole[5, 7], torch.inner(a[5], b[:, 7].contiguous())
        yield "addmv", whole[:, 7], torch.addmv(torch.zeros(64, dtype=dtype), a, b[:, 7], beta=0)
        yield "addmm", whole, torch.addmm(torch.zeros(555, dtype=dtype), a, b, beta=0)
        yield "tensordot", whole, torch.tensordot(a, b, 1)
        yield "transposed weight", whole, F.linear(a, b.t())
        yield "out=", whole, torch.mm(a, b, out=torch.full((64, 555), 3.0, dtype=dtype))

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


def mlp(width: int, depth: int, activation: str, dtype: torch.dtype) -> torch.nn.Module:
    """A deep perceptron; `activation` is a name of torch."""
    g = torch.Generator().manual_seed(3)
    weights = [torch.randn(width, width, generator=g).to(dtype) / width**0.5 for _ in range(depth)]
    act = getattr(torch, activation, None) or getattr(F, activation)

    class MLP(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for w in weights[:-1]:
                x = act(F.linear(x, w))
            return F.linear(x, weights[-1])

    return MLP()


@pytest.mark.parametrize("activation", ["tanh", "gelu", "silu", "sin"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a19_deep_perceptron_in_pieces(activation: str, dtype: torch.dtype) -> None:
    net, x = mlp(48, 5, activation, dtype), values(1031, 48, dtype=dtype)

    def pairs() -> Pairs:
        yield from chunks(net, x, (7, 256))
        yield from row(net, x, (1, 2, 5))
        yield "one by one", net(x[:20]), torch.stack([net(v) for v in x[:20]])
        yield "vmap", net(x[:20]), torch.vmap(net)(x[:20])
        yield from threads(lambda: net(x))

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_f4_long_rows_few_outputs(dtype: torch.dtype) -> None:
    x, w = values(32, 16384, dtype=dtype), values(5, 16384, dtype=dtype, seed=1)
    layer = lambda t: F.linear(t, w).softmax(-1)  # noqa: E731

    def pairs() -> Pairs:
        yield from row(layer, x, range(1, 33))
        yield from position(layer, x)

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


def test_a7_right_before_the_same() -> None:
    """Equal bits of a wrong product would be worthless: within the bound of fp32 sums first."""
    for m, k, n in ((32, 128, 1024), (129, 17, 257), (1, 4096, 33), (300, 1, 1)):
        for dtype in FLOATS:
            a, b = values(m, k, dtype=dtype), values(k, n, dtype=dtype, seed=1)
            got = ops.mm(a, b, out_dtype=torch.float32)
            exact = a.double() @ b.double()
            bound = (a.double().abs() @ b.double().abs()) * (k + 1) * 2.0**-24
            assert bool(((got.double() - exact).abs() <= bound).all())
            assert bits.equal(got.to(dtype), ops.mm(a, b))
