"""All forms of the matrix product: engine against the contract, and against each other."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix_samples import DTYPES, KINDS, STRIDES, restride, values
from samebits import bits, ops
from samebits.engines import cpu
from samebits.errors import DTypeError, ShapeError
from samebits.ops.linear import reference

sizes = st.one_of(st.integers(1, 7), st.integers(1, 36))
scalars = st.sampled_from([1.0, 0.0, -1.0, 0.3, 1e-30])
stride_pairs = st.tuples(*[st.sampled_from(STRIDES)] * 3)


@settings(max_examples=100)
@given(
    batch=st.integers(0, 4),
    m=sizes,
    n=sizes,
    k=st.one_of(st.integers(0, 40), st.integers(760, 860)),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(KINDS),
    strides=stride_pairs,
    scale=st.tuples(scalars, scalars),
    c_shape=st.sampled_from(["none", "full", "row", "column", "scalar"]),
    isa=st.sampled_from(cpu.isas()),
    seed=st.integers(0, 2**31),
)
def test_engine_is_the_contract(
    batch: int,
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    kind: str,
    strides: tuple[str, str, str],
    scale: tuple[float, float],
    c_shape: str,
    isa: str,
    seed: int,
) -> None:
    alpha, beta = scale
    if k > 100:
        batch, m, n = min(batch, 2), min(m, 13), min(n, 11)
    lead = (batch,) if batch else ()
    a, b = values((*lead, m, k), dtype, kind, seed), values((*lead, k, n), dtype, kind, seed + 1)
    shape = {"none": (), "full": (*lead, m, n), "row": (n,), "column": (m, 1), "scalar": ()}
    c = values(shape[c_shape], dtype, kind, seed + 2)
    sa, sb = restride(a, strides[0]), restride(b, strides[1])
    sc = restride(c, strides[2]) if c_shape == "full" else c
    before = cpu.isa()
    try:
        cpu.set_isa(isa)
        if c_shape == "none":
            got = ops.bmm(sa, sb) if batch else ops.mm(sa, sb)
            want = reference.matmul(a, b)
        else:
            form = ops.baddbmm if batch else ops.addmm
            got = form(sc, sa, sb, alpha=alpha, beta=beta)
            want = reference.matmul(a, b, c, alpha, beta)
    finally:
        cpu.set_isa(before)
    assert bits.equal(got, want)


def test_stock_depends_on_the_batch() -> None:
    """A2: slices along the leading axis; and A8's neighbour, mv against mm."""
    x, w = torch.randn(100, 30, 8), torch.randn(8, 20)
    full = torch.matmul(x.reshape(-1, 8), w)
    parts = torch.cat([torch.matmul(c, w) for c in x.reshape(-1, 8).split([1] * 3000)])
    assert not bits.equal(parts, full)


@pytest.mark.parametrize("dtype", DTYPES)
def test_partitions_of_the_leading_axes(dtype: torch.dtype) -> None:
    x, w = values((100, 30, 8), dtype, "normal", 1), values((8, 20), dtype, "normal", 2)
    full = ops.matmul(x, w)
    for size in (1, 2, 3, 50):
        assert bits.equal(torch.cat([ops.matmul(c, w) for c in x.split(size)]), full)
    flat = x.reshape(-1, 8)
    for size in (1, 2, 7, 1000):
        rows = torch.cat([ops.matmul(c, w) for c in flat.split(size)])
        assert bits.equal(rows, full.reshape(-1, 20))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 255, 256, 512])
def test_bmm_is_a_loop_of_mm(count: int, dtype: torch.dtype) -> None:
    a, b = values((count, 8, 64), dtype, "normal", 3), values((count, 64, 8), dtype, "normal", 4)
    full = ops.bmm(a, b)
    for i in {0, count // 2, count - 1}:
        assert bits.equal(ops.mm(a[i], b[i]), full[i])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_form_gives_the_same_bits(dtype: torch.dtype) -> None:
    a, b = values((21, 300), dtype, "wide", 5), values((300, 18), dtype, "wide", 6)
    full = ops.mm(a, b)
    assert bits.equal(ops.linear(a, b.t()), full)
    assert bits.equal(ops.matmul(a[None], b)[0], full)
    assert bits.equal(ops.bmm(a[None], b[None])[0], full)
    assert bits.equal(torch.stack([ops.mv(a, b[:, j]) for j in range(18)], 1), full)
    assert bits.equal(ops.matmul(a, b[:, 3]), full[:, 3])
    assert bits.equal(ops.matmul(a[4], b), full[4])
    assert bits.equal(ops.matmul(a[4], b[:, 3]), full[4, 3])
    assert bits.equal(ops.dot(a[4], b[:, 3]), full[4, 3])
    assert bits.equal(ops.mm(b.t(), a.t()), full.t().contiguous())
    zero = torch.tensor(-0.0, dtype=dtype)
    assert bits.equal(ops.addmm(zero, a, b), full)
    assert bits.equal(ops.addmv(zero, a, b[:, 3]), full[:, 3])
    assert bits.equal(ops.matmul(a.expand(2, 3, 21, 300), b.expand(3, 300, 18))[1, 2], full)
    joined = ops.addbmm(zero, a.reshape(21, 5, 60).permute(1, 0, 2), b.reshape(5, 60, 18))
    assert bits.equal(joined, full)


def test_beta_zero_does_not_read() -> None:
    a, b = torch.randn(5, 6), torch.randn(6, 7)
    for bad in (math.nan, math.inf):
        got = ops.addmm(torch.full((5, 7), bad), a, b, beta=0)
        assert bits.equal(got, ops.mm(a, b))


def test_empty_axes() -> None:
    assert bits.equal(ops.mm(torch.randn(3, 0), torch.randn(0, 4)), torch.zeros(3, 4))
    assert ops.mm(torch.randn(0, 3), torch.randn(3, 4)).shape == (0, 4)
    assert ops.bmm(torch.randn(0, 2, 3), torch.randn(0, 3, 4)).shape == (0, 2, 4)
    c = torch.randn(3, 4)
    got = ops.addmm(c, torch.randn(3, 0), torch.randn(0, 4), beta=0.5)
    assert bits.equal(got, 0.0 + 0.5 * c)
    assert bits.equal(ops.dot(torch.randn(0), torch.randn(0)), torch.tensor(0.0))


def test_pending_negation_is_carried_out() -> None:
    z = torch.randn(4, 4, dtype=torch.complex64).conj().imag
    assert z.is_neg()
    w = torch.randn(4, 4)
    assert bits.equal(ops.mm(z, w), ops.mm(z.clone(), w))


def test_gradients_match_torch() -> None:
    def grads(fn: object, *tensors: torch.Tensor) -> list[torch.Tensor]:
        leaves = [t.clone().requires_grad_() for t in tensors]
        y = fn(*leaves)  # type: ignore[operator]
        y.backward(torch.linspace(-1, 1, y.numel()).reshape(y.shape))
        return [t.grad for t in leaves if t.grad is not None]

    a, b, c = torch.randn(2, 5, 6), torch.randn(2, 6, 7), torch.randn(5, 1)
    cases = [
        (ops.bmm, torch.bmm, (a, b)),
        (ops.mm, torch.mm, (a[0], b[0])),
        (ops.mv, torch.mv, (a[0], b[0, :, 0])),
        (ops.dot, torch.dot, (a[0, 0], b[0, :, 0])),
        (ops.matmul, torch.matmul, (a, b[0])),
        (lambda *t: ops.addmm(*t, alpha=0.5, beta=2), lambda *t: torch.addmm(*t, alpha=0.5, beta=2),
         (c, a[0], b[0])),
        (ops.baddbmm, torch.baddbmm, (c, a, b)),
        (ops.addbmm, torch.addbmm, (c, a, b)),
    ]  # fmt: skip
    for ours, theirs, tensors in cases:
        for x, y in zip(grads(ours, *tensors), grads(theirs, *tensors), strict=True):
            torch.testing.assert_close(x, y)


def test_refused_operands() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    for bad in (lambda: ops.mm(a, a), lambda: ops.mm(a[None], b), lambda: ops.bmm(a, b),
                lambda: ops.addmm(torch.randn(2, 5), a, b), lambda: ops.dot(a, b),
                lambda: ops.matmul(a, torch.tensor(1.0)), lambda: ops.mv(a, torch.randn(3)),
                lambda: ops.bmm(torch.randn(2, 3, 4), torch.randn(3, 4, 5)),
                lambda: ops.matmul(torch.randn(2, 3, 4), torch.randn(3, 4, 5)),
                lambda: ops.addbmm(b, torch.randn(2, 3, 4), torch.randn(3, 4, 5))):  # fmt: skip
        with pytest.raises(ShapeError):
            bad()
    with pytest.raises(DTypeError, match="one dtype"):
        ops.mm(a, b.half())
    with pytest.raises(DTypeError, match="no contract"):
        ops.mm(a.double(), b.double())
    with pytest.raises(DTypeError, match="on the CPU and on CUDA"):
        ops.mm(a.to("meta"), b.to("meta"))
