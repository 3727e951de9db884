"""``linear``: y = x @ weight.T + bias, every row a function of that row alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from samebits.contract import Lanes, Tree
from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import gemm as engine
from samebits.errors import ContractError, DTypeError, ShapeError
from samebits.ops.linear import packed
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


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | packed.PackedWeight,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    tree: Tree | str | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias``: fp32 accumulation in the contract's tree, one rounding at the end.

    On a CPU the tree is lanes(16): lane l of 16 runs the fma chain over k = l, l + 16, ... from
    +0, the tail of K filled with zeros; the lanes are folded 8-4-2-1. On a GPU it is the one that
    ``contract_of`` names for the weight. The bias is added in fp32. Element [m, n] depends on row
    m of x, row n of weight and bias[n] only. K = 0 gives +0 (or the bias). NaN results are the
    device's own NaN.
    Differentiable once.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides.
        weight: [N, K], dtype of x, any strides; or what `samebits.ops.pack_weight` made of it.
        bias: [N], dtype of x, or None.
        out_dtype: dtype of the result; ``torch.float32`` returns accumulators plus bias before the
            last rounding. Default: dtype of x.
        tree: on a GPU, another tree than the device class's own, e.g. "balanced(8)" for a weight
            that tensor-parallel ranks share.

    Returns:
        [..., N].

    Raises:
        ShapeError: the shapes do not fit.
        DTypeError: mixed or other dtypes or devices; tensors that are not dense.
        ContractError: no contract has this tree.
    """
    x = plain(x)
    if bias is not None:
        bias = plain(bias)
    if isinstance(weight, packed.PackedWeight):
        return packed.forward(x, weight, bias, out_dtype, tree)
    weight = plain(weight)
    if needs_graph(x, weight, bias):
        check(x, weight, bias, out_dtype)
        result: torch.Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
            x, weight, bias, out_dtype, tree
        )
        return result
    return forward(x, weight, bias, out_dtype, tree)


def forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    tree: Tree | str | None = None,
) -> torch.Tensor:
    """`linear` without autograd: what the switch calls."""
    check(x, weight, bias, out_dtype)
    return _compute(x, weight, bias, out_dtype, tree)


def _compute(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    tree: Tree | str | None,
) -> torch.Tensor:
    if x.is_cuda:
        result: torch.Tensor = cuda_products().linear(x, weight, bias, out_dtype, tree)
        return result
    if tree is not None and str(tree) != str(Lanes(16)):
        raise ContractError(f"linear: on a CPU the tree is {Lanes(16)}, not {tree}")
    return engine.linear(x, weight, bias, out_dtype)


def check(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> None:
    """Raises the error that `linear` documents, if there is one."""
    dtype = x.dtype
    if (  # the usual call, in as few steps as possible
        dtype in DTYPE_CODE
        and weight.dtype is dtype
        and together(x, weight)
        and x.layout is _STRIDED
        and weight.layout is _STRIDED
        and weight.dim() == 2
        and x.dim() > 0
        and x.shape[-1] == weight.shape[1]
        and out_dtype is None
        and (
            bias is None
            or (
                bias.dtype is dtype
                and together(x, bias)
                and bias.layout is _STRIDED
                and bias.shape == weight.shape[:1]
            )
        )
    ):
        return
    check_tensor("linear", "x", x, dtype)
    check_tensor("linear", "weight", weight, dtype)
    if weight.dim() != 2:
        raise ShapeError(f"linear: weight must be [N, K], not {tuple(weight.shape)}")
    if x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear: the last axis of x {tuple(x.shape)} must have the size K of "
            f"weight [N, K] = {tuple(weight.shape)}"
        )
    if bias is not None:
        check_tensor("linear", "bias", bias, dtype)
        if bias.shape != weight.shape[:1]:
            raise ShapeError(
                f"linear: bias must be [N] = [{weight.shape[0]}], not {tuple(bias.shape)}"
            )
    check_device("linear", x, weight=weight, bias=bias)
    if out_dtype is not None and out_dtype not in (dtype, torch.float32):
        raise DTypeError(f"linear: out_dtype must be {dtype} or torch.float32, not {out_dtype}")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype | None,
        tree: Tree | str | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _compute(x, weight, bias, out_dtype, tree)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = plain(grads[0]).to(x.dtype)
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        flat = grad.reshape(-1, grad.shape[-1])
        bmm = cuda_products().bmm if x.is_cuda else engine.bmm
        grad_x = _compute(grad, weight.t(), None, None, None) if need_x else None
        grad_weight = bmm(flat.t(), x.reshape(-1, x.shape[-1])) if need_weight else None
        grad_bias = None
        if ctx.has_bias and need_bias:
            grad_bias = reduce("sum", flat, 0)
        return grad_x, grad_weight, grad_bias, None, None
