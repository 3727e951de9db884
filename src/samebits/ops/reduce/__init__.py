"""Reductions with the row tree: sum, mean, var, std, norms, prod, nansum, logsumexp.

The reduced axes, in row-major order, are one row of n elements. Leaves hold 1024 consecutive
elements; in a leaf 16 lanes (lane = index mod 16), each accumulated upwards from the identity in
fp32; lanes folded 8-4-2-1; leaves folded pairwise like a binary counter. One rounding, to the
result's dtype.

CUDA tensors have the tree of their device class (see `samebits.contract.rows`), the same formulas.

The tree depends on n alone: not on the other outputs, nor on strides, threads or instruction set.

Sums of squares use fma; ``mean`` is sum / n; ``var`` has two passes, the mean and then the sum of
``fma(d, d, acc)`` with ``d = x - mean``, divided by ``n - correction``; ``std`` and the 2-norm are
IEEE square roots; ``logsumexp`` is ``log(sum(exp(x - m))) + m`` with the exact maximum m (0 if
it is infinite). NaN and Inf behave as in torch; a NaN result is the canonical quiet NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import reduce as engine
from samebits.errors import DTypeError, ShapeError
from samebits.ops.checks import all_axes, axes_of, engine_tensor

Dim = int | Sequence[int] | None

_KINDS = engine.KINDS
_NORMS = {0.0: "norm0", 1.0: "norm1", 2.0: "norm2", math.inf: "norm_inf", -math.inf: "norm_neg_inf"}

#: Orders of vector norms that have a contract.
NORM_ORDERS = frozenset(_NORMS)


def run(
    kind: str,
    x: torch.Tensor,
    dim: Dim = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    correction: float = 0.0,
) -> torch.Tensor:
    """Any of the reductions, for a tensor that the engine is known to read; gradients are ignored.

    As in torch, `dtype` casts `x` first where that rounds; a wider dtype needs no cast.
    """
    axes = axes_of(kind, dim, x.dim())
    if dtype is None or dtype is x.dtype:
        dtype = x.dtype
    elif dtype not in DTYPE_CODE:
        raise DTypeError(f"{kind}: dtype={dtype} is not one of float32, bfloat16, float16")
    elif dtype is not torch.float32:
        x = x.to(dtype)
    if x.is_cuda:
        from samebits.ops.reduce import cuda

        return cuda.reduce(kind, x, axes, keepdim, dtype, correction)
    return engine.reduce(_KINDS[kind], x, axes, keepdim, dtype, correction)


def run_with_mean(
    kind: str, x: torch.Tensor, dim: Dim, keepdim: bool, correction: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``var`` or ``std`` and the mean; as `run`."""
    axes = axes_of(kind, dim, x.dim())
    if x.is_cuda:
        from samebits.ops.reduce import cuda

        return cuda.reduce_with_mean(kind, x, axes, keepdim, correction)
    return engine.reduce_with_mean(_KINDS[kind], x, axes, keepdim, x.dtype, correction)


def sum(
    x: torch.Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Sum over `dim` (None or (): all axes).

    Args:
        x: fp32, bf16 or fp16, any shape and strides.
        dtype: of the result; default that of `x`.

    Raises:
        DTypeError, ShapeError: see `checks`.
    """
    return run("sum", engine_tensor("sum", x, gpu=True), dim, keepdim, dtype)


def mean(
    x: torch.Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Arithmetic mean over `dim`: the sum divided by the number of elements; arguments as `sum`."""
    return run("mean", engine_tensor("mean", x, gpu=True), dim, keepdim, dtype)


def prod(
    x: torch.Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Product over `dim`, the same tree with multiplications; arguments as `sum`."""
    return run("prod", engine_tensor("prod", x, gpu=True), dim, keepdim, dtype)


def nansum(
    x: torch.Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Sum over `dim` that passes over NaN; arguments as `sum`."""
    return run("nansum", engine_tensor("nansum", x, gpu=True), dim, keepdim, dtype)


def var(
    x: torch.Tensor, dim: Dim = None, *, correction: float = 1, keepdim: bool = False
) -> torch.Tensor:
    """Variance over `dim`, divided by ``max(0, n - correction)``."""
    return run("var", engine_tensor("var", x, gpu=True), dim, keepdim, correction=correction)


def std(
    x: torch.Tensor, dim: Dim = None, *, correction: float = 1, keepdim: bool = False
) -> torch.Tensor:
    """Standard deviation over `dim`: the square root of `var`."""
    return run("std", engine_tensor("std", x, gpu=True), dim, keepdim, correction=correction)


def var_mean(
    x: torch.Tensor, dim: Dim = None, *, correction: float = 1, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """`var` and `mean` of the same elements."""
    return run_with_mean("var", engine_tensor("var_mean", x, gpu=True), dim, keepdim, correction)


def std_mean(
    x: torch.Tensor, dim: Dim = None, *, correction: float = 1, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """`std` and `mean` of the same elements."""
    return run_with_mean("std", engine_tensor("std_mean", x, gpu=True), dim, keepdim, correction)


def vector_norm(
    x: torch.Tensor,
    ord: float = 2,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Vector norm over `dim`, of order 0 (count of non-zeros), 1, 2, inf or -inf.

    Raises:
        DTypeError: another order: a general power has no contract.
        ShapeError: order inf or -inf of no elements.
    """
    return norm_of_order(engine_tensor("vector_norm", x, gpu=True), ord, dim, keepdim, dtype)


def norm_of_order(
    x: torch.Tensor, ord: float, dim: Dim, keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    """`vector_norm` for a tensor that the engine is known to read."""
    kind = _NORMS.get(float(ord))
    if kind is None:
        raise DTypeError(f"vector_norm: order {ord} has no contract: use 0, 1, 2, inf or -inf")
    if x.numel() == 0 and math.isinf(ord):
        axes = axes_of("vector_norm", dim, x.dim()) or all_axes(x.dim())
        if not all(x.shape[a] for a in axes):
            raise ShapeError(f"vector_norm: order {ord} of no elements is not defined")
    return run(kind, x, dim, keepdim, dtype)


def logsumexp(x: torch.Tensor, dim: int | Sequence[int], keepdim: bool = False) -> torch.Tensor:
    """``log(sum(exp(x)))`` over `dim`, without overflow; -inf if all elements are -inf."""
    return run("logsumexp", engine_tensor("logsumexp", x, gpu=True), dim, keepdim)
