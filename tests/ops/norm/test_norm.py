"""Normalisations: bits of the reference, rows independent of the batch (L2), any layout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from samebits import bits, ops
from samebits.errors import DTypeError, SamebitsError, ShapeError
from samebits.ops.norm import reference

Array = Callable[[torch.Tensor], np.ndarray]
Same = Callable[[torch.Tensor, np.ndarray], None]
Numbers = Callable[..., torch.Tensor]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@hypothesis_settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 9),
    n=st.one_of(st.integers(1, 70), st.sampled_from([768, 1024, 1025, 4097])),
    dtype=st.sampled_from(DTYPES),
    parameter=st.sampled_from([*DTYPES, None]),
    has_bias=st.booleans(),
    special=st.sampled_from([0.0, 0.0, 0.002]),
    eps=st.sampled_from([0.0, 1e-6, 1e-5, 0.1]),
)
def test_rms_and_layer_norm_are_the_reference(
    numbers: Numbers,
    array: Array,
    same: Same,
    isa: str,
    seed: int,
    rows: int,
    n: int,
    dtype: torch.dtype,
    parameter: torch.dtype | None,
    has_bias: bool,
    special: float,
    eps: float,
) -> None:
    x = numbers(seed, (rows, n), dtype, special=special, scale=4)
    w = None if parameter is None else numbers(seed + 1, (n,), parameter, scale=2)
    b = numbers(seed + 2, (n,), parameter or dtype, scale=2) if has_bias else None
    wide_w, wide_b = (None if p is None else array(p) for p in (w, b))
    same(ops.rms_norm(x, (n,), w, eps), reference.rms_norm(array(x), wide_w, eps))
    same(ops.layer_norm(x, (n,), w, b, eps), reference.layer_norm(array(x), wide_w, wide_b, eps))


@hypothesis_settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 3),
    groups=st.integers(1, 4),
    per_group=st.integers(1, 5),
    space=st.sampled_from([(), (1,), (5,), (7, 9), (40, 41)]),
    dtype=st.sampled_from(DTYPES),
    affine=st.sampled_from([None, *DTYPES]),
    channels_last=st.booleans(),
)
def test_group_and_batch_norm_are_the_reference(
    numbers: Numbers,
    array: Array,
    same: Same,
    isa: str,
    seed: int,
    batch: int,
    groups: int,
    per_group: int,
    space: tuple[int, ...],
    dtype: torch.dtype,
    affine: torch.dtype | None,
    channels_last: bool,
) -> None:
    channels = groups * per_group
    x = numbers(seed, (batch, channels, *space), dtype, scale=4)
    if channels_last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    w, b = (
        None if affine is None else numbers(seed + k, (channels,), affine, scale=2) for k in (1, 2)
    )
    wide_w, wide_b = (None if p is None else array(p) for p in (w, b))
    want = reference.group_norm(array(x), groups, wide_w, wide_b)
    same(ops.group_norm(x, groups, w, b), want)
    mean, var = numbers(seed + 3, (channels,), dtype), numbers(seed + 4, (channels,), dtype).abs()
    want = reference.batch_norm(array(x), array(mean), array(var), wide_w, wide_b)
    same(ops.batch_norm(x, mean, var, w, b), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_in_any_batch(dtype: torch.dtype) -> None:
    rows = 2**13 + 2**12 + 3  # L2: leading sizes across 2**13
    x = torch.randn(rows, 768, generator=torch.Generator().manual_seed(0)).tanh().to(dtype)
    w = x[0].clone()
    for fn in (
        lambda t: ops.layer_norm(t, (768,), w, w),
        lambda t: ops.rms_norm(t, (768,), w),
        lambda t: ops.group_norm(t, 6, w),
        lambda t: ops.batch_norm(t, w, w.abs()),
    ):
        full = fn(x)
        for first, last in ((0, 1), (0, 2**13), (1, 2**13 + 1), (rows - 5, rows), (4097, 4100)):
            assert bits.equal(fn(x[first:last]), full[first:last])
        wide = torch.full((64, 800), float("nan"), dtype=dtype)
        wide[:, 13:781] = x[:64]
        assert bits.equal(fn(wide[:, 13:781]), full[:64])


def test_several_axes_and_threads() -> None:
    x = torch.randn(6, 5, 8, 96)
    w = torch.randn(8, 96)
    flat = ops.layer_norm(x.view(30, 768), (768,), w.view(768), w.view(768))
    assert bits.equal(ops.layer_norm(x, (8, 96), w, w).view(30, 768), flat)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            big = x.view(30, 768).repeat(40, 1)
            assert bits.equal(ops.layer_norm(big, (768,), w.view(768), w.view(768))[:30], flat)
    finally:
        torch.set_num_threads(before)


def test_bad_arguments() -> None:
    x = torch.randn(2, 4)
    for shape in ((5,), (2, 2), (), (2, 2, 4)):
        with pytest.raises(ShapeError):
            ops.rms_norm(x, shape)
    with pytest.raises(ShapeError):
        ops.layer_norm(x, (4,), torch.ones(3))
    with pytest.raises(ShapeError):
        ops.group_norm(x, 3)
    with pytest.raises(ShapeError):
        ops.group_norm(x, 2, torch.ones(2))
    with pytest.raises(ShapeError):
        ops.batch_norm(x, torch.zeros(2), torch.ones(2))
    with pytest.raises(DTypeError):
        ops.rms_norm(x.double(), (4,))
    with pytest.raises(DTypeError):
        ops.layer_norm(x, (4,), torch.ones(4, dtype=torch.float64))
    with pytest.raises(SamebitsError, match="backward"):
        ops.rms_norm(x, (4,), torch.ones(4, requires_grad=True))
    assert ops.layer_norm(torch.empty(0, 4), (4,)).shape == (0, 4)
    assert ops.rms_norm(torch.empty(3, 0), (0,)).shape == (3, 0)
    assert ops.group_norm(torch.empty(0, 4, 3), 2).shape == (0, 4, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_residual_is_added_as_by_itself(dtype: torch.dtype) -> None:
    x, residual, w = (torch.randn(5, 3, 70).to(dtype) for _ in range(3))
    w = w[0, 0]
    y, total = ops.rms_norm(x, (70,), w, 1e-6, residual=residual)
    assert bits.equal(total, x + residual)
    assert bits.equal(y, ops.rms_norm(x + residual, (70,), w, 1e-6))
    y, total = ops.layer_norm(x, (3, 70), residual=residual)
    assert bits.equal(y, ops.layer_norm(x + residual, (3, 70)))
    with pytest.raises(ShapeError, match="residual"):
        ops.rms_norm(x, (70,), residual=residual[0])
