"""Running sums and products.

One chain per line, ascending from 0 (or 1), in a binary64 accumulator (a running sum of a
million elements would lose four digits in fp32); each stored element is the accumulator rounded to
fp32 and then to the result's dtype. So a prefix of the result is the result of the prefix:
``cumsum(x)[:k] == cumsum(x[:k])``, bit for bit.
"""

from __future__ import annotations

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import norm as engine
from samebits.errors import DTypeError
from samebits.ops.checks import axis_of, engine_tensor


def run(x: torch.Tensor, dim: int, dtype: torch.dtype | None, product: bool) -> torch.Tensor:
    """Both scans, for a tensor that the engine is known to read; gradients are ignored."""
    if dtype is None or dtype is x.dtype:
        dtype = x.dtype
    elif dtype not in DTYPE_CODE:
        raise DTypeError(f"cumsum: dtype={dtype} is not one of float32, bfloat16, float16")
    elif dtype is not torch.float32:
        x = x.to(dtype)
    axis = axis_of("cumsum", dim, x.dim())
    if x.is_cuda:
        from samebits.engines.triton.rows import scan as gpu

        return gpu.scan(x, axis, dtype, product)
    return engine.scan(x, axis, dtype, product)


def cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Running sum along `dim`.

    Args:
        x: fp32, bf16 or fp16, any shape and strides.
        dtype: of the result; default that of `x`.

    Returns:
        A contiguous tensor of x's shape.

    Raises:
        DTypeError, ShapeError: see `checks`.
    """
    return run(engine_tensor("cumsum", x, gpu=True), dim, dtype, False)


def cumprod(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Running product along `dim`; arguments as `cumsum`."""
    return run(engine_tensor("cumprod", x, gpu=True), dim, dtype, True)
