"""Packed weights: the bits of `linear`, from every instruction that multiplies them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix_samples import DTYPES, KINDS, STRIDES, restride, values
from samebits import bits, ops
from samebits.engines import cpu
from samebits.engines.cpu import _cpu
from samebits.errors import ContractError, DTypeError, ShapeError, UncoveredError
from samebits.ops.linear import reference

sizes = st.one_of(st.integers(1, 14), st.integers(1, 70))


@settings(max_examples=120)
@given(
    m=sizes,
    n=sizes,
    k=st.one_of(st.integers(0, 70), st.integers(700, 1100)),
    dtype=st.sampled_from(DTYPES),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    strides=st.tuples(st.sampled_from(STRIDES), st.sampled_from(STRIDES)),
    bias=st.booleans(),
    wide_out=st.booleans(),
    isa=st.sampled_from(cpu.isas()),
    dot=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_a_packed_weight_has_the_bits_of_the_contract(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    kinds: tuple[str, str],
    strides: tuple[str, str],
    bias: bool,
    wide_out: bool,
    isa: str,
    dot: bool,
    threads: int,
    seed: int,
) -> None:
    if k > 100:
        m, n = min(m, 17), min(n, 19)  # the reference is slow
    x, w = values((m, k), dtype, kinds[0], seed), values((n, k), dtype, kinds[1], seed + 1)
    b = values((n,), dtype, "normal", seed + 2) if bias else None
    out_dtype = torch.float32 if wide_out else None
    before = cpu.isa(), torch.get_num_threads(), _cpu.set_dot(dot)
    try:
        cpu.set_isa(isa)
        torch.set_num_threads(threads)
        packed = ops.pack_weight(restride(w, strides[1]))
        got = ops.linear(restride(x, strides[0]), packed, b, out_dtype=out_dtype)
    finally:
        cpu.set_isa(before[0])
        torch.set_num_threads(before[1])
        _cpu.set_dot(before[2])
    assert bits.equal(got, reference.linear(x, w, b, out_dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [33, 576, 2050])
def test_every_number_of_rows_has_the_same_bits(isa: str, k: int, dtype: torch.dtype) -> None:
    x, w = values((403, k), dtype, "normal", k), values((83, k), dtype, "normal", k + 1)
    full, packed = ops.linear(x, w), ops.pack_weight(w)
    for m in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 96, 97, 193, 403):
        assert bits.equal(ops.linear(x[:m], packed), full[:m])
    assert bits.equal(ops.linear(x.view(13, 31, k), packed), full.view(13, 31, -1))


@pytest.fixture
def with_dot() -> Iterator[None]:
    if not _cpu.has_dot():
        pytest.skip("this processor has no vdpbf16ps of two fused steps")
    yield


@pytest.mark.parametrize("sum_of_exponents", [*range(138, 147), *range(375, 384)])
def test_the_instruction_for_pairs_is_used_where_it_keeps_every_bit(
    with_dot: None, sum_of_exponents: int
) -> None:
    """Operands whose exponents are at both ends of what `dot_keeps_bits` allows."""
    g = torch.Generator().manual_seed(sum_of_exponents)
    of_x = sum_of_exponents // 2

    def numbers(exponent: int, rows: int) -> torch.Tensor:
        word = torch.randint(0, 2**7, (rows, 200), generator=g) | (exponent << 7)
        sign = torch.randint(0, 2, (rows, 200), generator=g) << 15
        return (word | sign).to(torch.uint16).view(torch.bfloat16)

    x, w = numbers(of_x, 7), numbers(sum_of_exponents - of_x, 21)
    x[:, 100:] = -x[:, :100]  # sums that cancel leave what was rounded
    w[:, 100:] = w[:, :100]
    got = ops.linear(x, ops.pack_weight(w), out_dtype=torch.float32)
    assert bits.equal(got, ops.linear(x, w, out_dtype=torch.float32))


def test_one_small_number_takes_a_panel_off_the_instruction(with_dot: None) -> None:
    x, w = values((6, 64), torch.bfloat16, "normal", 1), values((48, 64), torch.bfloat16, "wide", 2)
    x[3, 5] = 1e-39  # a subnormal number, which the instruction takes for zero
    w[20, 7] = 1e-39
    x[:, 7] = 1e30
    got = ops.linear(x, ops.pack_weight(w), out_dtype=torch.float32)
    assert bits.equal(got, ops.linear(x, w, out_dtype=torch.float32))


def test_a_packed_weight_is_a_copy() -> None:
    x, w = torch.randn(3, 40), torch.randn(20, 40)
    packed, want = ops.pack_weight(w), ops.linear(x, w)
    w.zero_()
    assert bits.equal(ops.linear(x, packed), want)


def test_empty_operands() -> None:
    assert ops.linear(torch.ones(0, 4), ops.pack_weight(torch.ones(3, 4))).shape == (0, 3)
    assert ops.linear(torch.ones(2, 4), ops.pack_weight(torch.ones(0, 4))).shape == (2, 0)
    got = ops.linear(torch.ones(2, 0), ops.pack_weight(torch.ones(3, 0)), torch.ones(3))
    assert bits.equal(got, torch.ones(2, 3))


def test_what_does_not_fit_is_refused() -> None:
    packed, x = ops.pack_weight(torch.ones(3, 4)), torch.ones(2, 4)
    with pytest.raises(ShapeError, match="K"):
        ops.linear(torch.ones(2, 5), packed)
    with pytest.raises(ShapeError, match="bias"):
        ops.linear(x, packed, torch.ones(4))
    with pytest.raises(DTypeError, match="one dtype"):
        ops.linear(x.to(torch.bfloat16), packed)
    with pytest.raises(DTypeError, match="out_dtype"):
        ops.linear(x, packed, out_dtype=torch.float16)
    with pytest.raises(ContractError, match="tree"):
        ops.linear(x, packed, tree="chain")
    with pytest.raises(UncoveredError, match="backward"):
        ops.linear(x.requires_grad_(), packed)
    with pytest.raises(ShapeError, match="N, K"):
        ops.pack_weight(torch.ones(3))
    with pytest.raises(DTypeError, match="int64"):
        ops.pack_weight(torch.ones(3, 4, dtype=torch.int64))
