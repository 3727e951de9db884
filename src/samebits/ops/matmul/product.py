"""``alpha * a @ b + beta * c`` for matrices and batches of them: validation, autograd, launch."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import gemm as engine
from samebits.errors import DTypeError, ShapeError
from samebits.ops.linear.operands import (
    check_device,
    check_tensor,
    cuda_products,
    needs_graph,
    plain,
    together,
)
from samebits.ops.reduce import run as reduce

_STRIDED = torch.strided


def product(
    op: str,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """a [M, K], b [K, N] or a [B, M, K], b [B, K, N]; c broadcasts to the result. Differentiable
    once.

    Raises:
        ShapeError: the shapes do not fit.
        DTypeError: mixed or other dtypes or devices; tensors that are not dense.
    """
    a, b = plain(a), plain(b)
    if c is not None:
        c = plain(c)
    if needs_graph(a, b, c):
        check(op, a, b, c, out_dtype)
        result: torch.Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            a, b, c, alpha, beta, out_dtype
        )
        return result
    return forward(op, a, b, c, alpha, beta, out_dtype)


def forward(
    op: str,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`product` without autograd: what the switch calls. `out` receives the result, if given."""
    check(op, a, b, c, out_dtype)
    result: torch.Tensor = engine_of(a).bmm(a, b, c, alpha, beta, out_dtype, out)
    return result


def engine_of(a: torch.Tensor) -> ModuleType:
    """Where `a` is multiplied: a module with the ``bmm`` of `samebits.engines.cpu.gemm`."""
    return cuda_products() if a.is_cuda else engine


def join_batch(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """a [B, M, K], b [B, K, N] as [M, B * K] and [B * K, N]: the batch becomes part of k.

    Raises:
        ShapeError: the shapes do not fit.
    """
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ShapeError(f"addbmm: {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied")
    batch, m, k = a.shape
    return a.permute(1, 0, 2).reshape(m, batch * k), b.reshape(batch * k, b.shape[2])


def check(
    op: str,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> None:
    """Raises the error that `product` documents, if there is one."""
    dtype = a.dtype
    sa, sb = a.shape, b.shape
    if (  # the usual call, in as few steps as possible
        dtype in DTYPE_CODE
        and b.dtype is dtype
        and together(a, b)
        and a.layout is _STRIDED
        and b.layout is _STRIDED
        and len(sa) == len(sb) == 2
        and sa[1] == sb[0]
        and c is None
        and out_dtype is None
    ):
        return
    check_tensor(op, "the first operand", a, dtype)
    check_tensor(op, "the second operand", b, dtype)
    if len(sa) != len(sb) or len(sa) not in (2, 3) or sa[-1] != sb[-2] or sa[:-2] != sb[:-2]:
        raise ShapeError(f"{op}: {tuple(sa)} and {tuple(sb)} cannot be multiplied")
    if c is not None:
        check_tensor(op, "the addend", c, c.dtype if out_dtype is c.dtype else dtype)
        full = (*sa[:-1], sb[-1])
        lead = len(full) - c.dim()
        if lead < 0 or any(s not in (1, t) for s, t in zip(c.shape, full[lead:], strict=True)):
            raise ShapeError(f"{op}: the addend {tuple(c.shape)} does not broadcast to {full}")
    check_device(op, a, the_second_operand=b, the_addend=c)
    if out_dtype is not None and out_dtype not in (dtype, torch.float32):
        raise DTypeError(f"{op}: out_dtype must be {dtype} or torch.float32, not {out_dtype}")


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        alpha: float,
        beta: float,
        out_dtype: torch.dtype | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.alpha, ctx.beta = alpha, beta
        ctx.c_shape = None if c is None else c.shape
        ctx.c_dtype = None if c is None else c.dtype
        return forward("product", a, b, c, alpha, beta, out_dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, b = ctx.saved_tensors
        full = plain(grads[0])
        grad = full.to(a.dtype)
        need_a, need_b, need_c = ctx.needs_input_grad[:3]
        bmm = engine_of(a).bmm
        grad_a = bmm(grad, b.mT, None, ctx.alpha) if need_a else None
        grad_b = bmm(a.mT, grad, None, ctx.alpha) if need_b else None
        grad_c = None
        if ctx.c_shape is not None and need_c:
            grad_c = _sum_to(full, ctx.c_shape, ctx.beta).to(ctx.c_dtype)
        return grad_a, grad_b, grad_c, None, None, None


def _sum_to(grad: torch.Tensor, shape: torch.Size, beta: float) -> torch.Tensor:
    """``beta * grad`` summed over the axes along which a tensor of `shape` was broadcast."""
    grad = grad if beta == 1 else grad * beta
    lead = grad.dim() - len(shape)
    axes = [i for i in range(grad.dim()) if i < lead or shape[i - lead] != grad.shape[i]]
    return reduce("sum", grad, axes).reshape(shape) if axes else grad
