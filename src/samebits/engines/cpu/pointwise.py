"""Launches the elementwise kernels: fp32, bf16 and fp16, any strides.

``f(x)[i]`` depends on ``x[i]`` alone: one code computes an element wherever it lies, in fp32 (or
fp64 inside), and rounds once to the dtype. Kernels run over dense storage. An operand that is not
laid out like the result is copied first, which changes no bits.
"""

from __future__ import annotations

import torch

from samebits.engines import watch
from samebits.engines.cpu import DTYPE_CODE, _cpu
from samebits.engines.cpu.numbers import written
from samebits.errors import DTypeError, ShapeError

Tensor = torch.Tensor

_UNARY = {name: i for i, name in enumerate(_cpu.pointwise_unary_ops())}
_BINARY = {name: i for i, name in enumerate(_cpu.pointwise_binary_ops())}
_run_unary, _run_binary, _run_gated = (
    _cpu.pointwise_unary,
    _cpu.pointwise_binary,
    _cpu.pointwise_gated,
)


def unary(name: str, x: Tensor, p0: float = 0.0, p1: float = 0.0, p2: float = 0.0) -> Tensor:
    """Applies a function of SB_UNARY_OPS (csrc/kernels/pointwise.hpp) to each element.

    Args:
        name: the function.
        x: fp32, bf16 or fp16 on the CPU, any shape and strides. Its memory is only read.
        p0, p1, p2: the function's parameters, rounded to fp32.

    Returns:
        a tensor of x's shape and dtype, with the strides that torch gives an elementwise result.

    Raises:
        DTypeError: another dtype, layout or device.
    """
    y = torch.empty_like(x)
    if y.stride() != x.stride():  # not dense: gather it first
        x = y.copy_(x)
    try:
        _run_unary(
            _UNARY[name], DTYPE_CODE[x.dtype], x.data_ptr(), y.data_ptr(), x.numel(), p0, p1, p2
        )
    except KeyError:
        raise _dtype_error(name, x) from None
    return written(y)


def binary(
    name: str, a: Tensor, b: Tensor, p0: float = 0.0, p1: float = 0.0, p2: float = 0.0
) -> Tensor:
    """Applies a function of SB_BINARY_OPS to each pair of elements.

    Args:
        name: the function.
        a, b: fp32, bf16 or fp16, of one dtype, with shapes that broadcast.
        p0, p1, p2: the function's parameters, rounded to fp32.

    Returns:
        a tensor of the broadcast shape, with the strides that torch gives an elementwise result.

    Raises:
        DTypeError: different dtypes, or another dtype, layout or device.
    """
    a, b, y = _aligned(name, a, b)
    _run_binary(
        _BINARY[name], DTYPE_CODE[a.dtype], a.data_ptr(), b.data_ptr(), y.data_ptr(), y.numel(),
        p0, p1, p2,
    )  # fmt: skip
    return written(y)


def gated(name: str, gate: Tensor, up: Tensor) -> Tensor:
    """``f(gate) * up`` in one pass, with the bits of the two operations: f(gate) is rounded first.

    Args:
        name: f, a function of SB_UNARY_OPS without parameters.
        gate, up: as `a` and `b` of `binary`.

    Raises:
        DTypeError: as `binary`.
    """
    if gate.dim() == 2 and gate.shape == up.shape and gate.stride(1) == up.stride(1) == 1:
        if gate.dtype is not up.dtype or gate.dtype not in DTYPE_CODE or not gate.is_cpu:
            raise _dtype_error(name, gate, up)
        rows, n = gate.shape
        y = gate.new_empty(rows, n)
        _cpu.pointwise_gated_rows(
            _UNARY[name], DTYPE_CODE[gate.dtype], gate.data_ptr(), gate.stride(0), up.data_ptr(),
            up.stride(0), y.data_ptr(), rows, n,
        )  # fmt: skip
        return y
    gate, up, y = _aligned(name, gate, up)
    _run_gated(
        _UNARY[name],
        DTYPE_CODE[gate.dtype],
        gate.data_ptr(),
        up.data_ptr(),
        y.data_ptr(),
        y.numel(),
    )
    return written(y)


def _aligned(name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both operands laid out like the result, and the result's memory."""
    if a.dtype is not b.dtype or a.dtype not in DTYPE_CODE or a.device.type != "cpu":
        raise _dtype_error(name, a, b)
    y = torch.empty_like(a)
    stride = y.stride()
    if a.shape == b.shape and a.stride() == stride and b.stride() == stride:
        return a, b, y
    y = result_like(a, b)
    return _dense(a, y), _dense(b, y), y


def result_like(*operands: Tensor) -> Tensor:
    """Uninitialised memory with the shape and strides that torch gives an elementwise result."""
    total = _shadow(operands[0])
    for x in operands[1:]:
        total = torch.ops.aten.add.Tensor(total, _shadow(x))
    return torch.empty_strided(total.shape, total.stride(), dtype=total.dtype, device="cpu")


def _shadow(x: Tensor) -> Tensor:
    """The shape, strides and dtype of `x` without its memory."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _dense(x: Tensor, y: Tensor) -> Tensor:
    """`x` broadcast to `y` and laid out like it."""
    if x.shape == y.shape and x.stride() == y.stride():
        return x
    return y.new_empty_strided(y.shape, y.stride()).copy_(x)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding: see `samebits.ops.rotary`, which validates its arguments.

    Args:
        x: [..., D] with at most 4 leading axes, D even.
        cos, sin: broadcast to x's leading axes, last axis D or D/2; of x's dtype.
    """
    x = x.contiguous()
    d, factors = x.shape[-1], cos.shape[-1]
    lead = x.shape[:-1]
    if len(lead) > 4:
        x4 = x.reshape(-1, 1, 1, 1, d)
        cos, sin = (f.expand(*lead, factors).reshape(-1, 1, 1, 1, factors) for f in (cos, sin))
        return rotary(x4.squeeze(1), cos.squeeze(1), sin.squeeze(1), interleaved).reshape(x.shape)
    cos = (cos if cos.stride(-1) == 1 else cos.contiguous()).expand(*lead, factors)
    sin = (sin if sin.stride(-1) == 1 else sin.contiguous()).expand(*lead, factors)
    y = torch.empty_like(x)
    if not x.numel():
        return y
    pad = 4 - len(lead)
    full = factors == d
    _cpu.pointwise_rotary(
        DTYPE_CODE[x.dtype], interleaved, d, [1] * pad + list(lead),
        [0] * pad + list(cos.stride()[:-1]), [0] * pad + list(sin.stride()[:-1]),
        (1 if interleaved else d // 2) if full else 0, 2 if full and interleaved else 1,
        x.data_ptr(), cos.data_ptr(), sin.data_ptr(), y.data_ptr(),
    )  # fmt: skip
    return written(y)


def rotary_at(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, positions: Tensor) -> Tensor:
    """Rotary embedding with factors of each token's position.

    Args:
        x: [T, heads, D], D even; rows may lie apart.
        cos, sin: [P, D] or [P, D/2], of x's dtype, columns side by side.
        positions: [T] int64.

    Returns:
        [T, heads, D], contiguous.

    Raises:
        ShapeError: a position has no factors.
    """
    tokens, heads, d = x.shape
    if x.stride(2) != 1 or (heads > 1 and x.stride(1) != d):
        x = x.contiguous()
    y = x.new_empty(tokens, heads, d)
    full = cos.shape[1] == d
    found = _cpu.pointwise_rotary_at(
        DTYPE_CODE[x.dtype], interleaved, d, heads, tokens, x.data_ptr(), x.stride(0),
        positions.data_ptr(), cos.shape[0], cos.data_ptr(), cos.stride(0), sin.data_ptr(),
        sin.stride(0), (1 if interleaved else d // 2) if full else 0,
        2 if full and interleaved else 1, y.data_ptr(),
    )  # fmt: skip
    if not found:
        raise ShapeError(f"rotary: a position is outside [0, {len(cos)})")
    return written(y)


def _dtype_error(name: str, *operands: Tensor) -> DTypeError:
    got = " and ".join(f"{x.dtype} on {x.device} ({x.layout})" for x in operands)
    return DTypeError(
        f"{name} takes dense CPU tensors of one dtype of float32, bfloat16 and float16, not {got}:"
        " convert them first"
    )


watch.offer(__name__, rotary, rotary_at)
