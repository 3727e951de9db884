"""Exact matrix products."""

from __future__ import annotations

import torch

from samebits.errors import DTypeError, ShapeError
from samebits.ops.exact.engine import checked, product, result_type


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias``, every result the exact sum rounded once, bias included.

    Args:
        x: [..., K].
        weight: [N, K].
        bias: [N], or anything that broadcasts to the result; dtype of x or fp32.
        out_dtype: that of x (None) or torch.float32.

    Returns:
        [..., N].

    Raises:
        ShapeError, DTypeError, SamebitsError: other operands; see `samebits.ops.exact`.
    """
    if weight.dim() != 2 or x.dim() == 0 or x.shape[-1] != weight.shape[-1]:
        raise ShapeError(
            f"exact.linear: x {tuple(x.shape)} and weight {tuple(weight.shape)}: use x [..., K], "
            "weight [N, K]"
        )
    shape = *x.shape[:-1], weight.shape[0]
    rows = x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])
    return _product("linear", rows, weight, bias, out_dtype, shape).view(shape)


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``a @ b`` in all shapes of torch.matmul, every result the exact sum rounded once.

    Args:
        a: [K], [M, K] or [..., M, K].
        b: [K], [K, N] or [..., K, N].
        out_dtype: that of a (None) or torch.float32.

    Raises:
        ShapeError, DTypeError, SamebitsError: other operands; see `samebits.ops.exact`.
    """
    if not a.dim() or not b.dim():
        raise ShapeError("exact.matmul: a scalar has no axis to sum along")
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = (b.unsqueeze(-1) if b.dim() == 1 else b).mT
    if left.shape[-1] != right.shape[-1]:
        raise ShapeError(f"exact.matmul: {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    try:
        lead = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            left.shape[:-2], right.shape[:-2]
        )
    except RuntimeError:
        raise ShapeError(
            f"exact.matmul: batches of {tuple(a.shape)} and {tuple(b.shape)} do not broadcast"
        ) from None
    m, k, n = *left.shape[-2:], right.shape[-2]
    count = lead.numel()
    if lead:
        left = left.expand(*lead, m, k).reshape(count, m, k)
        right = right.expand(*lead, n, k).reshape(count, n, k)
    y = _product("matmul", left, right, None, out_dtype, (*left.shape[:-1], n)).view(*lead, m, n)
    y = y.squeeze(-1) if b.dim() == 1 else y
    return y.squeeze(-1 if b.dim() == 1 else -2) if a.dim() == 1 else y


def baddbmm(
    c: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """``a @ b + c``, one rounding: a [B, M, K], b [B, K, N], c broadcasts to the result, or None.

    Raises:
        ShapeError, DTypeError, SamebitsError: other operands; see `samebits.ops.exact`.
    """
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ShapeError(f"exact.baddbmm: {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    return _product("baddbmm", a, b.mT, c, out_dtype, (*a.shape[:2], b.shape[2]))


def dot(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """The exact product of two vectors, rounded once; arguments and errors as `matmul`."""
    if a.dim() != 1 or b.dim() != 1:
        raise ShapeError(f"exact.dot: {tuple(a.shape)} and {tuple(b.shape)} are no vectors")
    return matmul(a, b, out_dtype=out_dtype)


def _product(
    op: str,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    shape: tuple[int, ...],
) -> torch.Tensor:
    x, w = checked(op, x), checked(op, w)
    out = x.dtype if out_dtype is None else out_dtype
    if w.dtype is not x.dtype or w.device != x.device:
        raise DTypeError(
            f"exact.{op}: operands are {x.dtype} on {x.device} and {w.dtype} on {w.device}: they "
            "must have one dtype and one device"
        )
    result_type(op, "out_dtype", x, out)
    if bias is None:
        return product(x, w, None, out)
    bias = checked(op, bias)
    if bias.dtype not in (x.dtype, torch.float32) or bias.device != x.device:
        raise DTypeError(f"exact.{op}: bias is {bias.dtype} on {bias.device}: use {x.dtype}")
    try:
        term = bias.to(torch.float32).expand(shape)
    except RuntimeError:
        raise ShapeError(
            f"exact.{op}: bias {tuple(bias.shape)} does not broadcast to {shape}"
        ) from None
    if len(shape) != x.dim():
        term = term.reshape(*x.shape[:-1], shape[-1])
    return product(x, w, term, out)
