"""Launcher of the products with a weight that was laid out once; see csrc/kernels/packed.hpp."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from samebits.engines import watch
from samebits.engines.cpu import DTYPE_CODE, _cpu

_linear = _cpu.linear_packed


@dataclass(frozen=True)
class Packed:
    """A weight [N, K] in the order in which the kernels read it; as large as the weight.

    Attributes:
        n, k: its shape.
        dtype: its dtype.
        words: uint8, the numbers in panels of 16 columns.
        ranges: uint8, exponents of each panel's numbers.
    """

    n: int
    k: int
    dtype: torch.dtype
    words: torch.Tensor
    ranges: torch.Tensor


def pack(weight: torch.Tensor) -> Packed:
    """`weight` [N, K] of fp32, bf16 or fp16, any strides, in CPU memory; copied."""
    n, k = weight.shape
    code = DTYPE_CODE[weight.dtype]
    sizes = _cpu.packed_size(n, k, code)
    words, ranges = (weight.new_empty(size, dtype=torch.uint8) for size in sizes)
    _cpu.pack_weight(
        weight.data_ptr(), n, k, weight.stride(0), weight.stride(1), code, words.data_ptr(),
        ranges.data_ptr(),
    )  # fmt: skip
    return Packed(n, k, weight.dtype, words, ranges)


def linear(
    x: torch.Tensor,
    weight: Packed,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias``: x [..., K] of the weight's dtype, bias [N] or None."""
    n, k = weight.n, weight.k
    code = out_code = DTYPE_CODE[x.dtype]
    if out_dtype is not None:
        out_code = DTYPE_CODE[out_dtype]
    shape = x.shape
    if len(shape) == 2 and (k == 1 or x.stride(1) == 1):
        rows, row = shape[0], x.stride(0)
        out = x.new_empty(rows, n) if out_dtype is None else x.new_empty(rows, n, dtype=out_dtype)
    else:
        x = x.contiguous()
        rows, row = shape[:-1].numel(), k
        out = x.new_empty(*shape[:-1], n, dtype=out_dtype)
    bias_ptr = 0
    if bias is not None:
        if not bias.is_contiguous():
            bias = bias.contiguous()
        bias_ptr = bias.data_ptr()
    _linear(
        x.data_ptr(), row, weight.words.data_ptr(), weight.ranges.data_ptr(), bias_ptr,
        out.data_ptr(), rows, n, k, code, out_code,
    )  # fmt: skip
    return out


watch.offer(__name__, linear)
