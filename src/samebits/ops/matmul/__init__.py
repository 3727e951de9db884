"""Matrix products in all of torch's forms, each an application of one contract.

Contract: fp32 accumulation over k in one tree (on a CPU lanes(16), on a GPU the one that
``contract_of`` names for [N, K], see `samebits.ops.linear`), then ``t = alpha * acc``,
``u = beta * c``, ``t + u`` as separate fp32 operations, then one rounding. alpha = 1 and beta = 1
multiply nothing; beta = 0 does not read c, so it may hold NaN. An element depends on its row of a,
its column of b and its element of c only: not on the other rows, not on the form by which the
product was reached (mv, mm, a slice of bmm), not on strides or threads.

All functions take float32, bfloat16 and float16 tensors of one dtype on one device, CPU or CUDA,
with any strides, give that dtype (or ``out_dtype=torch.float32``: the value before the last
rounding), are differentiable, and raise `ShapeError` or `DTypeError` for anything else.
"""

from __future__ import annotations

import numpy as np
import torch

from samebits.errors import ShapeError
from samebits.ops.linear.operands import check_tensor
from samebits.ops.matmul.product import join_batch, product

__all__ = [
    "addbmm",
    "addmm",
    "addmv",
    "baddbmm",
    "bmm",
    "dot",
    "matmul",
    "mm",
    "mv",
]


def mm(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """a [M, K] @ b [K, N] -> [M, N]."""
    _dims("mm", a=(a, 2), b=(b, 2))
    return product("mm", a, b, out_dtype=out_dtype)


def bmm(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """a [B, M, K] @ b [B, K, N] -> [B, M, N]; item i has the bits of ``mm(a[i], b[i])``."""
    _dims("bmm", a=(a, 3), b=(b, 3))
    return product("bmm", a, b, out_dtype=out_dtype)


def addmm(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``beta * c + alpha * a @ b``: a [M, K], b [K, N], c broadcasts to [M, N]."""
    _dims("addmm", a=(a, 2), b=(b, 2))
    return product("addmm", a, b, c, alpha, beta, out_dtype)


def baddbmm(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``beta * c + alpha * a @ b``: a [B, M, K], b [B, K, N], c broadcasts to [B, M, N]."""
    _dims("baddbmm", a=(a, 3), b=(b, 3))
    return product("baddbmm", a, b, c, alpha, beta, out_dtype)


def addbmm(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``beta * c + alpha * sum_i a[i] @ b[i]``: one product over (i, k) in row-major order.

    a [B, M, K], b [B, K, N], c broadcasts to [M, N]. The batch is a reduced axis here.
    """
    long_a, long_b = join_batch(a, b)
    return product("addbmm", long_a, long_b, c, alpha, beta, out_dtype)


def mv(a: torch.Tensor, v: torch.Tensor, *, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """a [M, K] @ v [K] -> [M], the bits of ``mm(a, v[:, None])``."""
    _dims("mv", a=(a, 2), v=(v, 1))
    return product("mv", a, v[:, None], out_dtype=out_dtype).squeeze(1)


def addmv(
    c: torch.Tensor,
    a: torch.Tensor,
    v: torch.Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``beta * c + alpha * a @ v``: a [M, K], v [K], c broadcasts to [M]."""
    _dims("addmv", a=(a, 2), v=(v, 1))
    if c.dim() > 1:
        raise ShapeError(f"addmv: c must broadcast to [M] = [{a.shape[0]}], not {tuple(c.shape)}")
    column = c[:, None] if c.dim() else c
    return product("addmv", a, v[:, None], column, alpha, beta, out_dtype).squeeze(1)


def dot(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """Inner product of two vectors [K] -> []."""
    _dims("dot", a=(a, 1), b=(b, 1))
    return product("dot", a[None, :], b[:, None], out_dtype=out_dtype).reshape(())


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``torch.matmul``: 1-D operands, broadcast leading axes, any number of dimensions.

    Raises:
        ShapeError: a 0-D operand, or shapes that do not fit.
    """
    for name, x in (("a", a), ("b", b)):
        check_tensor("matmul", name, x, a.dtype)
        if x.dim() == 0:
            raise ShapeError(f"matmul: {name} must have at least one dimension")
    if a.dim() == 1:
        wide = matmul(a[None, :], b, out_dtype=out_dtype)
        return wide.squeeze(-2) if b.dim() > 1 else wide.squeeze(0)
    if b.dim() == 1:
        return matmul(a, b[:, None], out_dtype=out_dtype).squeeze(-1)
    if b.dim() == 2:
        k = a.shape[-1]
        rows = a.reshape(a.shape[:-1].numel(), k)
        flat = product("matmul", rows, b, out_dtype=out_dtype)
        return flat.reshape(*a.shape[:-1], b.shape[1])
    try:
        lead = torch.Size(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    except ValueError as error:
        raise _mismatch("matmul", a, b) from error
    count = lead.numel()
    flat_a = a.expand(*lead, *a.shape[-2:]).reshape(count, *a.shape[-2:])
    flat_b = b.expand(*lead, *b.shape[-2:]).reshape(count, *b.shape[-2:])
    flat = product("matmul", flat_a, flat_b, out_dtype=out_dtype)
    return flat.reshape(*lead, *flat.shape[-2:])


def _dims(op: str, **operands: tuple[torch.Tensor, int]) -> None:
    for name, (x, dim) in operands.items():
        if x.dim() != dim:
            raise ShapeError(f"{op}: {name} must have {dim} dimensions, not {tuple(x.shape)}")


def _mismatch(op: str, a: torch.Tensor, b: torch.Tensor) -> ShapeError:
    return ShapeError(f"{op}: {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied")
