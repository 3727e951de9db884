"""Exact products: the bits of integers, whatever the order, the split and the machine."""

from __future__ import annotations

import pytest
import torch

from exact_samples import DTYPES, special, spread
from samebits import bits, ops
from samebits.engines.cpu import exact as engine
from samebits.errors import DTypeError, SamebitsError, ShapeError
from samebits.plan import contract_of

SHAPES = [(1, 1, 1), (3, 5, 7), (2, 17, 33), (5, 9, 130), (9, 70, 600), (66, 3, 40), (4, 3, 0)]


def test_stock_depends_on_the_order_of_k() -> None:
    x, w = torch.randn(8, 4096), torch.randn(8, 4096)
    p = torch.randperm(4096)
    assert bits.count_different(x @ w.T, x[:, p].contiguous() @ w[:, p].contiguous().T)


@pytest.mark.parametrize("octaves", [0, 8, 60])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_engine_has_the_bits_of_integers(
    shape: tuple[int, int, int], name: str, octaves: int, isa: str
) -> None:
    m, n, k = shape
    dtype = DTYPES[name]
    x, w = (spread(r, k, dtype=dtype, octaves=octaves, seed=s) for s, r in enumerate((m, n)))
    b = spread(n, dtype=dtype, octaves=octaves, seed=2)
    for out in {name, "fp32"}:
        contract = contract_of("linear", dtype=name, out_dtype=out, device="exact")
        for bias in (None, b):
            want = contract.evaluate(x, w, bias, engine="integers")
            assert bits.equal(contract.evaluate(x, w, bias, engine="cpu"), want)
            got = ops.exact.linear(x, w, bias, out_dtype=DTYPES[out])
            assert bits.equal(got, want)


@pytest.mark.parametrize("name", DTYPES)
def test_inf_nan_and_zeros(name: str) -> None:
    x, w = (special(spread(20, 40, dtype=DTYPES[name], octaves=3, seed=s), s) for s in (0, 1))
    want = contract_of("linear", dtype=name, device="exact").evaluate(x, w, engine="integers")
    assert {bool(want.isnan().any()), bool(want.isinf().any()), bool(want.isfinite().any())} == {
        True
    }
    assert bits.equal(ops.exact.linear(x, w), want)
    assert not torch.signbit(ops.exact.linear(x[:, :0], w[:, :0])).any()


def test_the_slow_step_is_reached_and_right() -> None:
    """Halfway cases, and terms whose exponents cover the whole range of bf16."""
    ones = torch.ones(1, 4).bfloat16()
    half = torch.tensor([[256.0, 1.0, 2.0**-60, -(2.0**-60)], [256, 1, 2.0**-60, 0]]).bfloat16()
    y, again = engine.product(ones, half, None, torch.bfloat16)
    assert again and y.tolist() == [[256.0, 258.0]]
    g = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**15), 2**15, (2, 12, 300), generator=g).to(torch.int16)
    x, w = words.view(torch.bfloat16).nan_to_num(0, 1, 1).unbind()
    want = contract_of("linear", dtype="bf16", device="exact").evaluate(x, w, engine="integers")
    y, again = engine.product(x, w, None, torch.bfloat16)
    assert bits.equal(y, want)
    # Large terms that cancel and leave what is below fp64's reach.
    huge = torch.tensor([2.0**100, 1.0, -(2.0**100), 2.0**-100])
    y, again = engine.product(huge[None], torch.ones(1, 4), None, torch.float32)
    assert again == 1 and y.item() == 1.0 + 2.0**-100
    assert ops.exact.dot(huge[[0, 2, 3]], torch.ones(3)).item() == 2.0**-100


def test_overflow_comes_from_the_sum_alone() -> None:
    big = torch.tensor([[2.0**127, 2.0**127, -(2.0**127)]])
    assert ops.exact.linear(big, torch.ones(1, 3)).item() == 2.0**127
    assert ops.exact.linear(big[:, :2], torch.ones(1, 2)).item() == torch.inf
    half = torch.full((1, 4), 30000.0).half()
    assert ops.exact.linear(half, torch.tensor([[1.0, 1, 1, -1]]).half()).item() == 60000.0
    assert ops.exact.linear(half[:, :3], torch.ones(1, 3).half()).item() == torch.inf


@pytest.mark.parametrize("name", DTYPES)
def test_no_order_split_or_batch_shows(name: str) -> None:
    dtype = DTYPES[name]
    x, w = (spread(r, 1000, dtype=dtype, octaves=5, seed=s) for s, r in ((0, 37), (1, 23)))
    want = ops.exact.linear(x, w)
    p = torch.randperm(1000)
    assert bits.equal(ops.exact.linear(x[:, p], w[:, p]), want)
    assert bits.equal(ops.exact.linear(x[5:6], w), want[5:6])
    assert bits.equal(ops.exact.linear(x.T.contiguous().T, w.flip(0)), want.flip(1))
    assert bits.equal(ops.exact.matmul(w, x.T).T, want)
    padded = torch.cat([x, torch.zeros(37, 24, dtype=dtype)], 1)
    assert bits.equal(
        ops.exact.linear(padded, torch.cat([w, torch.full((23, 24), 7.0, dtype=dtype)], 1)), want
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert bits.equal(ops.exact.linear(x, w), want)
    finally:
        torch.set_num_threads(before)


def test_products_of_no_terms() -> None:
    for shape in ((0,), (2, 0), (0, 0), (2, 3, 0), (0, 3, 0)):
        x, w, b = torch.ones(shape), torch.ones(4, 0), torch.arange(4.0)
        assert bits.equal(ops.exact.linear(x, w, b), b.expand(*shape[:-1], 4).contiguous())
        assert bits.equal(ops.exact.linear(x, w), torch.zeros(*shape[:-1], 4))


def test_shapes_of_matmul() -> None:
    a, b = torch.randn(2, 1, 3, 5), torch.randn(4, 5, 6)
    y = ops.exact.matmul(a, b)
    assert y.shape == (2, 4, 3, 6)
    assert bits.equal(y[1, 2], ops.exact.matmul(a[1, 0], b[2]))
    assert ops.exact.matmul(a[0, 0], b[0, :, 0]).shape == (3,)
    assert ops.exact.matmul(b[0, :, 0], b[0]).shape == (6,)
    assert ops.exact.matmul(b[0, :, 0], b).shape == (4, 6)
    assert ops.exact.dot(b[0, :, 0], b[1, :, 0]).shape == ()
    assert ops.exact.linear(a, torch.randn(7, 5), torch.randn(2, 1, 3, 7)).shape == (2, 1, 3, 7)
    assert ops.exact.linear(a[0, 0, 0], torch.randn(7, 5), torch.randn(7)).shape == (7,)
    assert ops.exact.linear(a[:0], torch.randn(7, 5)).shape == (0, 1, 3, 7)


def test_what_is_not_covered_is_refused() -> None:
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    with pytest.raises(ShapeError):
        ops.exact.linear(x, w[:, :2])
    with pytest.raises(ShapeError, match="broadcast"):
        ops.exact.linear(x, w, torch.randn(5))
    with pytest.raises(DTypeError):
        ops.exact.linear(x, w.bfloat16())
    with pytest.raises(DTypeError):
        ops.exact.linear(x.double(), w.double())
    with pytest.raises(DTypeError, match="out_dtype"):
        ops.exact.linear(x, w, out_dtype=torch.float16)
    with pytest.raises(SamebitsError, match="backward"):
        ops.exact.linear(x, w.requires_grad_())
    with pytest.raises(ShapeError):
        ops.exact.matmul(x, w)
