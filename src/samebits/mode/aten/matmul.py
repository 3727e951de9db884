"""Overrides of the matrix products. ``matmul``, ``einsum`` and ``inner`` are
made of these by torch itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import gemm as engine
from samebits.errors import DTypeError
from samebits.mode.fallback import stock
from samebits.mode.registry import DENSE, DENSE_AUTOGRAD, aten
from samebits.ops.linear import check as check_linear
from samebits.ops.linear import forward as linear_forward
from samebits.ops.linear.operands import needs_graph
from samebits.ops.matmul.product import forward, join_batch

_MM = stock("mm")
_MM_OUT = stock("mm.out")
_BMM = stock("bmm")
_BMM_OUT = stock("bmm.out")
_ADDMM = stock("addmm")
_ADDMM_OUT = stock("addmm.out")
_BADDBMM = stock("baddbmm")
_ADDBMM = stock("addbmm")
_ADDMV = stock("addmv")
_DOT = stock("dot")
_VDOT = stock("vdot")
_ADDMM_ACTIVATION = stock("_addmm_activation")
_LINEAR = stock("linear")
_MV = stock("mv")
_TENSORDOT = stock("tensordot", "CompositeImplicitAutograd")


def _into(
    out: torch.Tensor,
    op: str,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1,
    beta: float = 1,
) -> torch.Tensor:
    """The result written to `out`: in place where that is safe, else through a copy."""
    if (
        out.is_contiguous()
        and out.dtype is a.dtype
        and a.dim() == b.dim()
        and out.shape == (*a.shape[:-1], b.shape[-1])
        and not any(_same_storage(out, x) for x in (a, b, c))
    ):
        return forward(op, a, b, c, alpha, beta, None, out)
    result = forward(op, a, b, c, alpha, beta)
    if out.dtype is not result.dtype:
        raise DTypeError(f"{op}: out must be {result.dtype}, not {out.dtype}")
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def _same_storage(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    return b is not None and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@aten("mm", key=DENSE)
def mm(self: torch.Tensor, mat2: torch.Tensor) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _MM.by_dtype(self.dtype, self, mat2)
    a, b = self.shape, mat2.shape
    on_cpu = self.is_cpu and mat2.is_cpu
    if on_cpu and len(a) == len(b) == 2 and a[1] == b[0] and self.dtype is mat2.dtype:
        return engine.bmm(self, mat2)
    return forward("mm", self, mat2)


@aten("mm.out", key=DENSE)
def mm_out(self: torch.Tensor, mat2: torch.Tensor, *, out: torch.Tensor) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _MM_OUT.by_dtype(self.dtype, self, mat2, out=out)
    return _into(out, "mm", self, mat2)


@aten("bmm", key=DENSE)
def bmm(self: torch.Tensor, mat2: torch.Tensor) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _BMM.by_dtype(self.dtype, self, mat2)
    return forward("bmm", self, mat2)


@aten("bmm.out", key=DENSE)
def bmm_out(self: torch.Tensor, mat2: torch.Tensor, *, out: torch.Tensor) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _BMM_OUT.by_dtype(self.dtype, self, mat2, out=out)
    return _into(out, "bmm", self, mat2)


@aten("addmm", key=DENSE)
def addmm(
    self: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    if mat1.dtype not in DTYPE_CODE:
        return _ADDMM.by_dtype(mat1.dtype, self, mat1, mat2, beta=beta, alpha=alpha)
    return forward("addmm", mat1, mat2, self, alpha, beta)


@aten("addmm.out", key=DENSE)
def addmm_out(
    self: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor,
) -> Any:
    if mat1.dtype not in DTYPE_CODE:
        return _ADDMM_OUT.by_dtype(mat1.dtype, self, mat1, mat2, beta=beta, alpha=alpha, out=out)
    return _into(out, "addmm", mat1, mat2, self, alpha, beta)


@aten("baddbmm", key=DENSE)
def baddbmm(
    self: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    if batch1.dtype not in DTYPE_CODE:
        return _BADDBMM.by_dtype(batch1.dtype, self, batch1, batch2, beta=beta, alpha=alpha)
    return forward("baddbmm", batch1, batch2, self, alpha, beta)


@aten("addbmm", key=DENSE)
def addbmm(
    self: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    if batch1.dtype not in DTYPE_CODE:
        return _ADDBMM.by_dtype(batch1.dtype, self, batch1, batch2, beta=beta, alpha=alpha)
    long_1, long_2 = join_batch(batch1, batch2)
    return forward("addbmm", long_1, long_2, self, alpha, beta)


# Products with a result of another dtype: torch has them for CUDA tensors alone, and for no dtypes
# that the operation does not cover.


@aten("mm.dtype", "bmm.dtype", key="CUDA")
def product_dtype(self: torch.Tensor, mat2: torch.Tensor, out_dtype: torch.dtype) -> Any:
    return forward("mm" if self.dim() == 2 else "bmm", self, mat2, out_dtype=out_dtype)


@aten("addmm.dtype", "baddbmm.dtype", key="CUDA")
def product_and_addend_dtype(
    self: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    out_dtype: torch.dtype,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    op = "addmm" if a.dim() == 2 else "baddbmm"
    return forward(op, a, b, self, alpha, beta, out_dtype)


@aten("mv", key=DENSE)
def mv(self: torch.Tensor, vec: torch.Tensor) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _MV.by_dtype(self.dtype, self, vec)
    if vec.dim() != 1:
        return _MV(self, vec)  # torch's own error
    return forward("mv", self, vec[:, None]).squeeze(1)


@aten("addmv", key=DENSE)
def addmv(
    self: torch.Tensor,
    mat: torch.Tensor,
    vec: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    if mat.dtype not in DTYPE_CODE:
        return _ADDMV.by_dtype(mat.dtype, self, mat, vec, beta=beta, alpha=alpha)
    if vec.dim() != 1:
        return _ADDMV(self, mat, vec, beta=beta, alpha=alpha)  # torch's own error
    column = self[:, None] if self.dim() else self
    return forward("addmv", mat, vec[:, None], column, alpha, beta).squeeze(1)


@aten("dot", key=DENSE)
def dot(self: torch.Tensor, tensor: torch.Tensor) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _DOT.by_dtype(self.dtype, self, tensor)
    return forward("dot", self[None], tensor[:, None]).reshape(())


@aten("vdot", key=DENSE)
def vdot(self: torch.Tensor, other: torch.Tensor) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _VDOT.by_dtype(self.dtype, self, other)
    return forward("vdot", self[None], other[:, None]).reshape(())


@aten("tensordot", key=(*DENSE, *DENSE_AUTOGRAD, "FuncTorchBatched"))
def tensordot(
    self: torch.Tensor, other: torch.Tensor, dims_self: Sequence[int], dims_other: Sequence[int]
) -> Any:
    """torch computes a result of one element as a dot product or as a sum, whichever the strides
    suggest, and others as a matrix product; here it is always a matrix product.
    """
    fits = len(dims_self) == len(dims_other) and self.is_floating_point()
    fits = fits and all(-self.dim() <= i < self.dim() for i in dims_self)
    if not fits or not all(-other.dim() <= j < other.dim() for j in dims_other):
        return _TENSORDOT(self, other, dims_self, dims_other)
    a, b = [i % self.dim() for i in dims_self], [j % other.dim() for j in dims_other]
    for i, j in zip(a, b, strict=True):
        if self.shape[i] != other.shape[j]:
            if self.shape[i] == 1:
                other = other.sum(j, keepdim=True)
            elif other.shape[j] == 1:
                self = self.sum(i, keepdim=True)
            else:
                return _TENSORDOT(self, other, dims_self, dims_other)  # torch's error
    rows = [i for i in range(self.dim()) if i not in a]
    columns = [j for j in range(other.dim()) if j not in b]
    lead, last = [self.shape[i] for i in rows], [other.shape[j] for j in columns]
    k = math.prod(self.shape[i] for i in a)
    left = self.permute(rows + a).reshape(math.prod(lead), k)
    right = other.permute(b + columns).reshape(k, math.prod(last))
    return left.mm(right).reshape(lead + last)


@aten("_addmm_activation", key=DENSE)
def addmm_activation(
    self: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    use_gelu: bool = False,
) -> Any:
    if mat1.dtype not in DTYPE_CODE:
        return _ADDMM_ACTIVATION.by_dtype(
            mat1.dtype, self, mat1, mat2, beta=beta, alpha=alpha, use_gelu=use_gelu
        )
    y = forward("addmm", mat1, mat2, self, alpha, beta, torch.float32)
    # The dispatcher again: gelu has its own override. One rounding, after the activation.
    z = torch.nn.functional.gelu(y) if use_gelu else y.clamp_min_(0)
    return z.to(mat1.dtype)


@aten("linear", key=DENSE)
def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    # At these keys all operands are dense; what is left to check is quick.
    dtype = input.dtype
    if dtype not in DTYPE_CODE:
        return _LINEAR.by_dtype(dtype, input, weight, bias)
    shape = weight.shape
    if (
        input.is_cpu
        and weight.is_cpu
        and weight.dtype is dtype
        and len(shape) == 2
        and input.dim() > 0
        and input.shape[-1] == shape[1]
        and (bias is None or (bias.is_cpu and bias.dtype is dtype and bias.shape == shape[:1]))
    ):
        return engine.linear(input, weight, bias)
    return linear_forward(input, weight, bias)


@aten("linear", key=DENSE_AUTOGRAD)
def linear_autograd(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> Any:
    if input.dtype not in DTYPE_CODE:
        return _LINEAR.by_dtype(input.dtype, input, weight, bias)
    if not needs_graph(input, weight, bias):
        return linear(input, weight, bias)
    # torch's own formulas for the backward, and the same bits forward.
    check_linear(input, weight, bias, None)
    rows = input if input.dim() == 2 else input.reshape(input.shape[:-1].numel(), -1)
    y = rows.mm(weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    return y if input.dim() == 2 else y.reshape(*input.shape[:-1], weight.shape[0])
