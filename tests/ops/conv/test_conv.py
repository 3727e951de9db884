"""Convolutions: against the definition, against torch, and over batches."""

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
from samebits.ops.conv import lowering, reference

FORWARD = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}
TRANSPOSE = {1: ops.conv_transpose1d, 2: ops.conv_transpose2d, 3: ops.conv_transpose3d}
STOCK = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
STOCK_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@settings(max_examples=60)
@given(
    dims=st.integers(1, 3),
    transposed=st.booleans(),
    images=st.integers(1, 3),
    groups=st.sampled_from([1, 1, 2, 3]),
    channels=st.integers(1, 5),
    filters=st.integers(1, 5),
    size=st.integers(3, 7),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(KINDS),
    strides=st.sampled_from(STRIDES),
    isa=st.sampled_from(cpu.isas()),
    chunk=st.sampled_from([60, 1000, 4 << 20]),
    seed=st.integers(0, 2**31),
)
def test_engine_is_the_contract(
    dims: int,
    transposed: bool,
    images: int,
    groups: int,
    channels: int,
    filters: int,
    size: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
    bias: bool,
    dtype: torch.dtype,
    kind: str,
    strides: str,
    isa: str,
    chunk: int,
    seed: int,
) -> None:
    if dims == 3:
        channels, filters, size = min(channels, 2), min(filters, 2), min(size, 5)
    span = dilation * (kernel - 1)
    if not transposed and size + 2 * padding <= span:
        return
    if transposed and (size - 1) * stride + 1 + span - 2 * padding < 1:
        return
    x = values((images, channels * groups, *[size] * dims), dtype, kind, seed)
    lead = (channels * groups, filters) if transposed else (filters * groups, channels)
    w = values((*lead, *[kernel] * dims), dtype, kind, seed + 1)
    b = values((filters * groups,), dtype, kind, seed + 2) if bias else None
    fn = (TRANSPOSE if transposed else FORWARD)[dims]
    want = (reference.conv_transpose if transposed else reference.conv)(
        x, w, b, stride, padding, dilation, groups
    )
    before, before_chunk = cpu.isa(), lowering._CHUNK
    try:
        cpu.set_isa(isa)
        lowering._CHUNK = {"cpu": chunk}
        got = fn(
            restride(x, strides), w, b, stride=stride, padding=padding, dilation=dilation,
            groups=groups,
        )  # fmt: skip
    finally:
        cpu.set_isa(before)
        lowering._CHUNK = before_chunk
    assert bits.equal(got, want)


def test_stock_conv1d_depends_on_the_batch() -> None:
    """W2."""
    x, w = torch.randn(20, 256, 25), torch.randn(1024, 256, 3)
    assert not bits.equal(F.conv1d(x[:1], w), F.conv1d(x, w)[:1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("dims", "x_shape", "w_shape", "groups"),
    [
        (1, (20, 256, 25), (1024, 256, 3), 1),
        (2, (8, 16, 14, 14), (24, 16, 3, 3), 1),
        (2, (8, 32, 9, 9), (32, 1, 7, 7), 32),
        (2, (8, 3, 32, 32), (16, 3, 4, 4), 1),
        (3, (8, 4, 5, 6, 7), (6, 2, 3, 3, 3), 2),
    ],
)
def test_batch(
    dims: int, x_shape: tuple[int, ...], w_shape: tuple[int, ...], groups: int, dtype: torch.dtype
) -> None:
    x, w = values(x_shape, dtype, "normal", 1), values(w_shape, dtype, "normal", 2)
    full = FORWARD[dims](x, w, padding=1, groups=groups)
    for count in (1, 2, 3, len(x) - 1):
        assert bits.equal(FORWARD[dims](x[:count], w, padding=1, groups=groups), full[:count])
    assert bits.equal(FORWARD[dims](x.flip(0), w, padding=1, groups=groups), full.flip(0))
    assert bits.equal(FORWARD[dims](x[3], w, padding=1, groups=groups), full[3])


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("options", [
    {}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2}, {"groups": 2, "stride": 3},
    {"padding": 3, "stride": 2},
])  # fmt: skip
def test_values_and_gradients_match_torch(
    dims: int, transposed: bool, options: dict[str, int]
) -> None:
    groups = options.get("groups", 1)
    x = torch.randn(3, 4, *[6, 7, 5][:dims])
    w = torch.randn(4, 6 // groups, *[3, 2, 3][:dims])
    if not transposed:
        w = torch.randn(6, 4 // groups, *[3, 2, 3][:dims])
    b = torch.randn(6)
    # Stock in fp64: its fp32 sum of a bias's gradient is the less accurate one.
    ours, theirs = ([t.to(kind, copy=True).requires_grad_() for t in (x, w, b)]
                    for kind in (torch.float32, torch.float64))  # fmt: skip
    y = (TRANSPOSE if transposed else FORWARD)[dims](*ours, **options)
    z = (STOCK_TRANSPOSE if transposed else STOCK)[dims](*theirs, **options)
    torch.testing.assert_close(y, z.float(), rtol=1e-5, atol=1e-5)
    grad = torch.randn(y.shape)
    y.backward(grad)
    z.backward(grad.double())
    for mine, stock in zip(ours, theirs, strict=True):
        assert mine.grad is not None and stock.grad is not None
        torch.testing.assert_close(mine.grad, stock.grad.float(), rtol=1e-4, atol=1e-4)


def test_output_padding_and_names() -> None:
    x, w = torch.randn(2, 3, 9), torch.randn(3, 4, 3)
    got = ops.conv_transpose1d(x, w, stride=3, padding=1, output_padding=2)
    want = F.conv_transpose1d(x, w, stride=3, padding=1, output_padding=2)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    w = torch.randn(5, 3, 4)
    for name in ("same", "valid"):
        got, want = ops.conv1d(x, w, padding=name), F.conv1d(x, w, padding=name)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_empty_axes() -> None:
    w, b = torch.randn(5, 3, 2), torch.randn(5)
    assert ops.conv1d(torch.randn(0, 3, 8), w).shape == (0, 5, 7)
    got = ops.conv1d(torch.randn(2, 0, 8), torch.randn(5, 0, 2), b)
    assert bits.equal(got, b[None, :, None].expand(2, 5, 7))


def test_refused() -> None:
    x, w = torch.randn(2, 4, 8), torch.randn(6, 4, 3)
    for bad in (
        lambda: ops.conv1d(x, w[:, :3]),
        lambda: ops.conv1d(x, w, torch.randn(5)),
        lambda: ops.conv1d(x, w, stride=0),
        lambda: ops.conv1d(x, w, padding=-1),
        lambda: ops.conv1d(x, w, dilation=4),
        lambda: ops.conv1d(x, w, groups=3),
        lambda: ops.conv1d(x, w, padding="some"),
        lambda: ops.conv1d(x, w, stride=2, padding="same"),
        lambda: ops.conv2d(x, w),
        lambda: ops.conv_transpose1d(x, w),
        lambda: ops.conv_transpose1d(x, torch.randn(4, 6, 3), output_padding=1),
    ):
        with pytest.raises(ShapeError):
            bad()
    with pytest.raises(DTypeError):
        ops.conv1d(x, w.double())
    with pytest.raises(DTypeError):
        ops.conv1d(x.to("meta"), w)
