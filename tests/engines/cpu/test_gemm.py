"""The launcher: every schedule gives the bits of every other one, wherever the operands lie."""

from __future__ import annotations

import math

import pytest
import torch

from matrix_samples import DTYPES, KINDS, values
from samebits import bits
from samebits.engines.cpu import _cpu, gemm, packed
from samebits.ops.linear import reference

#: Sizes on both sides of every limit at which the engine changes its schedule.
ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 18, 19, 24, 25, 31, 32, 33, 36, 37, 70, 131, 132, 133, 265]
INNER = [1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 767, 768, 769, 1537]
COLUMNS = [1, 7, 15, 16, 17, 32, 33, 128, 129]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", INNER)
def test_all_schedules_agree(isa: str, k: int, dtype: torch.dtype) -> None:
    x, w = values((265, k), dtype, "normal", k), values((129, k), dtype, "normal", k + 1)
    by_column = w.t().contiguous()
    some = [0, 3, 264]
    full = torch.stack([gemm.linear(row[None], w, None)[0] for row in x])
    assert bits.equal(full[some], reference.linear(x[some], w))
    for m in ROWS:
        assert bits.equal(gemm.linear(x[:m], w, None), full[:m])
        assert bits.equal(gemm.bmm(x[:m], by_column), full[:m])
    for n in COLUMNS:
        for m in (1, 4, 5, 40):
            assert bits.equal(gemm.linear(x[:m], w[:n], None), full[:m, :n])
            assert bits.equal(gemm.bmm(x[:m], by_column[:, :n]), full[:m, :n])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [145, 2065])
def test_many_rows_have_the_bits_of_one(isa: str, k: int, kind: str, dtype: torch.dtype) -> None:
    """Strips, of an odd number of steps, that a cache holds and that it does not."""
    x, w = values((99, k), dtype, kind, k), values((41, k), dtype, kind, k + 1)
    one_by_one = torch.cat([gemm.linear(row[None], w, None) for row in x])
    for dot in (True, False):
        before = _cpu.set_dot(dot)
        try:
            assert bits.equal(gemm.linear(x, w, None), one_by_one)
            turned = x.t().contiguous().t()
            assert bits.equal(gemm.bmm(turned, w.t()), one_by_one)
            assert bits.equal(gemm.bmm(x, w.t().contiguous()), one_by_one)
        finally:
            _cpu.set_dot(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("k", [2**16, 2**16 + 17])
def test_deep_products_have_the_bits_of_one_row(k: int, dtype: torch.dtype) -> None:
    """On both sides of the depth from which on nothing is laid out whole."""
    x, w = values((3, k), dtype, "normal", 1), values((17, k), dtype, "normal", 2)
    again = torch.arange(200) % 3
    want = torch.cat([gemm.linear(row[None], w, None) for row in x])[again]
    assert bits.equal(gemm.linear(x[again], w, None), want)
    assert bits.equal(packed.linear(x[again], packed.pack(w), None), want)


def test_threads_agree_on_batches() -> None:
    a, b = torch.randn(7, 150, 190), torch.randn(7, 190, 70)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = gemm.bmm(a, b)
        for threads in (2, 3, 4):
            torch.set_num_threads(threads)
            assert bits.equal(gemm.bmm(a, b), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("m", [1, 3, 9, 40])
def test_writes_all_of_out_and_nothing_else(m: int) -> None:
    a, b = torch.randn(m, 33), torch.randn(33, 21)
    want = gemm.bmm(a, b)
    frame = torch.full((m + 2, 2 * 21 + 4), math.nan)
    out = frame[1 : m + 1, 1 : 2 * 21 + 1 : 2]
    assert gemm.bmm(a, b, out=out) is out
    assert bits.equal(out, want)
    assert int(frame.isnan().sum()) == frame.numel() - want.numel()
    column = torch.full((21, m), math.nan)
    gemm.bmm(a, b, out=column.t())
    assert bits.equal(column.t(), want)


def test_wide_addend_and_result() -> None:
    a, b = values((5, 40), torch.bfloat16, "wide", 1), values((40, 9), torch.bfloat16, "wide", 2)
    c = torch.randn(5, 9)
    got = gemm.bmm(a, b, c, 0.7, 1.3, torch.float32)
    assert bits.equal(got, reference.matmul(a, b, c, 0.7, 1.3, torch.float32))


def test_strides_past_two_to_the_31() -> None:
    """Offsets are 64-bit: two rows, 2^31 elements apart (only their pages are touched)."""
    memory = torch.empty(2**31 + 64, dtype=torch.bfloat16)
    x = memory.as_strided((2, 64), (2**31, 1))
    x.copy_(values((2, 64), torch.bfloat16, "normal", 3))
    w = values((64, 5), torch.bfloat16, "normal", 4)
    assert bits.equal(gemm.bmm(x, w), gemm.bmm(x.clone(), w))
    assert bits.equal(gemm.bmm(w.t(), x.t()), gemm.bmm(x.clone(), w).t().contiguous())
