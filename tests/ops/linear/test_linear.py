"""linear: engine against the contract, and the promises that it is made for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix_samples import DTYPES, KINDS, STRIDES, restride, values
from samebits import bits, ops
from samebits.engines import cpu
from samebits.errors import DTypeError, ShapeError
from samebits.ops.linear import reference

sizes = st.one_of(st.integers(1, 9), st.integers(1, 70))


@settings(max_examples=120)
@given(
    m=sizes,
    n=sizes,
    k=st.one_of(st.integers(0, 40), st.integers(700, 1700)),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(KINDS),
    strides=st.tuples(st.sampled_from(STRIDES), st.sampled_from(STRIDES)),
    bias=st.booleans(),
    wide_out=st.booleans(),
    isa=st.sampled_from(cpu.isas()),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_engine_is_the_contract(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    kind: str,
    strides: tuple[str, str],
    bias: bool,
    wide_out: bool,
    isa: str,
    threads: int,
    seed: int,
) -> None:
    if k > 100:
        m, n = min(m, 23), min(n, 19)  # the reference is slow
    x, w = values((m, k), dtype, kind, seed), values((n, k), dtype, kind, seed + 1)
    b = values((n,), dtype, kind, seed + 2) if bias else None
    out_dtype = torch.float32 if wide_out else None
    before, before_threads = cpu.isa(), torch.get_num_threads()
    try:
        cpu.set_isa(isa)
        torch.set_num_threads(threads)
        got = ops.linear(restride(x, strides[0]), restride(w, strides[1]), b, out_dtype=out_dtype)
    finally:
        cpu.set_isa(before)
        torch.set_num_threads(before_threads)
    assert bits.equal(got, reference.linear(x, w, b, out_dtype))


def row_classes(fn: object, x: torch.Tensor, sizes: list[int]) -> int:
    """How many different results row 0 has over batches of the given sizes."""
    seen = {bytes(bits.view(fn(x[:m]))[0].numpy().tobytes()) for m in sizes}  # type: ignore[operator]
    return len(seen)


MANY = [*range(1, 71), 128, 131, 132, 133, 300]


def test_stock_depends_on_the_batch() -> None:
    """A1, A2, F4: without this the tests below would prove nothing."""
    g = torch.Generator().manual_seed(0)
    for n, k in ((1000, 1000), (5, 16384)):
        x, w = torch.randn(32, k, generator=g), torch.randn(n, k, generator=g)
        assert row_classes(lambda a, w=w: F.linear(a, w), x, [1, 2, 4, 5, 6, 7, 32]) > 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "k"), [(64, 64), (512, 512), (1000, 1000), (5, 16384), (1, 777), (37, 3072)]
)
def test_row_does_not_depend_on_the_batch(n: int, k: int, dtype: torch.dtype) -> None:
    x, w = values((300, k), dtype, "normal", 1), values((n, k), dtype, "normal", 2)
    bias = values((n,), dtype, "normal", 3)
    assert row_classes(lambda a: ops.linear(a, w, bias), x, MANY) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_position_and_chunks(dtype: torch.dtype) -> None:
    x, w = values((70, 1000), dtype, "cancel", 4), values((45, 1000), dtype, "wide", 5)
    full = ops.linear(x, w)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(6))
    assert bits.equal(ops.linear(x[order], w), full[order])
    for size in (1, 2, 3, 5, 7, 13, 32, 69):
        assert bits.equal(torch.cat([ops.linear(c, w) for c in x.split(size)]), full)
    for size in (1, 3, 16, 44):  # columns: a weight cut over devices
        assert bits.equal(torch.cat([ops.linear(x, c) for c in w.split(size)], 1), full)


def test_neighbours_do_not_leak() -> None:
    x, w = (
        values((12, 500), torch.float32, "normal", 7),
        values((20, 500), torch.float32, "normal", 8),
    )
    full = ops.linear(x, w)
    for bad in (float("nan"), float("inf"), 3e38, 1e-45):
        y = x.clone()
        y[1::2] = bad
        assert bits.equal(ops.linear(y, w)[::2], full[::2])


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads(threads: int) -> None:
    x, w = (
        values((150, 1600), torch.float32, "wide", 9),
        values((300, 1600), torch.float32, "wide", 10),
    )
    full = ops.linear(x, w)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert bits.equal(ops.linear(x, w), full)
    finally:
        torch.set_num_threads(before)


def test_isa(isa: str) -> None:
    x, w = (
        values((40, 900), torch.bfloat16, "special", 11),
        values((33, 900), torch.bfloat16, "special", 12),
    )
    got = ops.linear(x, w, out_dtype=torch.float32)
    cpu.set_isa("scalar")
    assert bits.equal(got, ops.linear(x, w, out_dtype=torch.float32))


def test_denormals_do_not_depend_on_the_caller() -> None:
    x, w = (
        values((3, 100), torch.float32, "subnormal", 13),
        values((4, 100), torch.float32, "subnormal", 14),
    )
    bias = torch.full((4,), 1e-40)
    full = ops.linear(x, w, bias)
    assert (full != 0).all()
    assert torch.set_flush_denormal(True)
    try:
        flushed = ops.linear(x, w, bias)
    finally:
        torch.set_flush_denormal(False)
    assert bits.equal(flushed, full)


def test_empty_axes() -> None:
    w = torch.randn(4, 6)
    assert ops.linear(torch.randn(0, 6), w).shape == (0, 4)
    assert ops.linear(torch.randn(2, 0, 6), w).shape == (2, 0, 4)
    assert ops.linear(torch.randn(3, 6), w[:0]).shape == (3, 0)
    none = ops.linear(torch.randn(3, 0), torch.randn(4, 0))
    assert bits.equal(none, torch.zeros(3, 4))
    bias = torch.randn(4)
    assert bits.equal(ops.linear(torch.randn(3, 0), torch.randn(4, 0), bias), bias.expand(3, 4))


def test_leading_axes() -> None:
    x, w, b = torch.randn(2, 3, 5, 40), torch.randn(7, 40), torch.randn(7)
    want = ops.linear(x.reshape(-1, 40), w, b).reshape(2, 3, 5, 7)
    assert bits.equal(ops.linear(x, w, b), want)
    assert bits.equal(ops.linear(x[0, 0, 0], w, b), want[0, 0, 0])
    assert bits.equal(ops.linear(x.transpose(0, 2), w, b), want.transpose(0, 2).contiguous())


def test_close_to_exact() -> None:
    """Other tests promise the bits; this one says that they are right."""
    x, w = torch.randn(60, 3000), torch.randn(50, 3000)
    exact = x.double() @ w.double().t()
    bound = 2 * 3000 / 16 * 2.0**-24 * (x.abs().double() @ w.abs().double().t())
    assert ((ops.linear(x, w) - exact).abs() <= bound).all()


def test_gradients_match_torch() -> None:
    x, w, b = torch.randn(5, 3, 20), torch.randn(7, 20), torch.randn(7)
    ours = [t.clone().requires_grad_() for t in (x, w, b)]
    theirs = [t.clone().requires_grad_() for t in (x, w, b)]
    grad = torch.randn(5, 3, 7)
    ops.linear(*ours).backward(grad)
    F.linear(*theirs).backward(grad)
    for a, t in zip(ours, theirs, strict=True):
        assert a.grad is not None and t.grad is not None
        torch.testing.assert_close(a.grad, t.grad)


def test_gradient_of_the_input_does_not_depend_on_the_batch() -> None:
    x, w = torch.randn(9, 200), torch.randn(64, 200)
    grad = torch.randn(9, 64)

    def of(rows: int) -> torch.Tensor:
        leaf = x[:rows].clone().requires_grad_()
        ops.linear(leaf, w).backward(grad[:rows])
        assert leaf.grad is not None
        return leaf.grad

    full = of(9)
    for rows in range(1, 9):
        assert bits.equal(of(rows), full[:rows])


def test_refused_operands() -> None:
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    with pytest.raises(ShapeError, match="size K"):
        ops.linear(x, torch.randn(5, 3))
    with pytest.raises(ShapeError, match=r"\[N, K\]"):
        ops.linear(x, torch.randn(4))
    with pytest.raises(ShapeError, match="bias"):
        ops.linear(x, w, torch.randn(4))
    with pytest.raises(ShapeError):
        ops.linear(torch.tensor(1.0), w)
    for bad in (x.double(), x.to(torch.complex64), x.int(), x.bool()):
        with pytest.raises(DTypeError, match="no contract"):
            ops.linear(bad, w.to(bad.dtype))
    with pytest.raises(DTypeError, match="one dtype"):
        ops.linear(x, w.bfloat16())
    with pytest.raises(DTypeError, match="on the CPU and on CUDA"):
        ops.linear(x.to("meta"), w)
    with pytest.raises(DTypeError, match="dense"):
        ops.linear(x.to_sparse(), w)
    with pytest.raises(DTypeError, match="no contract"):
        quantised = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
        ops.linear(quantised, w)
    with pytest.raises(DTypeError, match="out_dtype"):
        ops.linear(x, w, out_dtype=torch.bfloat16)
