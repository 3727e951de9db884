"""The contract of all matrix products, evaluated in NumPy. Slow, and written for reading."""

from __future__ import annotations

import numpy as np
import torch

from samebits.contract import numerics

_NARROW = {
    torch.bfloat16: (numerics.f32_to_bf16, numerics.bf16_to_f32),
    torch.float16: (numerics.f32_to_fp16, numerics.fp16_to_f32),
}


def widen(x: torch.Tensor) -> numerics.F32:
    """A tensor's values as fp32 (exact)."""
    if x.dtype is torch.float32:
        return np.asarray(x.detach().contiguous().numpy())
    words = x.detach().contiguous().view(torch.int16).numpy().view(np.uint16)
    return _NARROW[x.dtype][1](words)


def narrow(x: numerics.F32, dtype: torch.dtype) -> torch.Tensor:
    """fp32 values as a tensor of `dtype`: one rounding, canonical NaN."""
    if dtype is torch.float32:
        return torch.from_numpy(np.ascontiguousarray(numerics.canonical(x)))
    words = np.ascontiguousarray(_NARROW[dtype][0](x))
    return torch.from_numpy(words.view(np.int16)).view(dtype)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``alpha * a @ b + beta * c``: a [..., M, K], b [..., K, N], c broadcasts to the result."""
    acc = numerics.lanes16_dot(widen(a), np.swapaxes(widen(b), -1, -2))
    if alpha != 1:
        acc = numerics.mul32(np.float32(alpha), acc)
    if c is not None and beta != 0:
        u = widen(c)
        if beta != 1:
            u = numerics.mul32(np.float32(beta), u)
        acc = numerics.add32(acc, u)
    return narrow(acc, out_dtype or a.dtype)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias``: x [..., K], weight [N, K]."""
    rows = x.reshape(-1, weight.shape[1]) if weight.shape[1] else x.reshape(x.shape[:-1].numel(), 0)
    y = matmul(rows, weight.t(), bias, out_dtype=out_dtype)
    return y.reshape(*x.shape[:-1], weight.shape[0])
