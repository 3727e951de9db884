"""Sums, norms and softmax whose sums are exact; see `samebits.contract.exact.rows`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.errors import DTypeError, ShapeError
from samebits.ops.checks import axes_of, axis_of
from samebits.ops.exact import engine
from samebits.ops.exact.engine import checked, norm, result_type, rows

Dim = int | Sequence[int] | None


def sum(
    x: torch.Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The exact sum over `dim` (None or (): all axes), rounded once.

    Args:
        x: any shape and strides.
        dtype: of the result: that of x (None), or torch.float32.

    Raises:
        ShapeError, DTypeError, SamebitsError: other operands; see `samebits.ops.exact`.
    """
    x = checked("sum", x)
    return _shaped(rows(_last("sum", x, dim), _type("sum", x, dtype)), x, dim, keepdim, "sum")


def mean(
    x: torch.Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The exact sum, rounded to fp32, divided by the number of elements; arguments as `sum`."""
    x = checked("mean", x)
    y = engine.mean(_last("mean", x, dim), _type("mean", x, dtype))
    return _shaped(y, x, dim, keepdim, "mean")


def vector_norm(
    x: torch.Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The square root of the exact sum of squares, rounded to fp32 first; arguments as `sum`."""
    x = checked("vector_norm", x)
    y = engine.length(_last("vector_norm", x, dim), _type("vector_norm", x, dtype))
    return _shaped(y, x, dim, keepdim, "vector_norm")


def softmax(x: torch.Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``e / S(e)``, ``e = exp(x - max x)`` in fp32, S the exact sum rounded to fp32.

    Args:
        x: any shape.
        dtype: of the result: that of x (None), or torch.float32.

    Raises:
        ShapeError, DTypeError, SamebitsError: other operands; see `samebits.ops.exact`.
    """
    row, out = _rows_along("softmax", x, dim), _type("softmax", x, dtype)
    return _back(_softmax("softmax", row, out), dim, x)


def log_softmax(
    x: torch.Tensor, dim: int = -1, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``(x - m) - log(S(exp(x - m)))``, m = max x; arguments as `softmax`."""
    row, out = _rows_along("log_softmax", x, dim), _type("log_softmax", x, dtype)
    return _back(_softmax("log_softmax", row, out), dim, x)


def logsumexp(x: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    """``log(S(exp(x - m))) + m``, m = max x, or 0 where that is infinite; errors as `softmax`."""
    row = _rows_along("logsumexp", x, dim)
    y = _softmax("logsumexp", row, row.dtype)
    return y.unsqueeze(dim) if keepdim and x.dim() else y


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6
) -> torch.Tensor:
    """``(x * r) * weight``, ``r = 1 / sqrt(Q(x) / n + eps)``, Q the exact sum of squares.

    Args:
        x: [..., n].
        weight: [n], dtype of x, or None.
        eps: rounded to fp32.

    Raises:
        ShapeError, DTypeError, SamebitsError: other operands; see `samebits.ops.exact`.
    """
    x = checked("rms_norm", x)
    (weight,) = _parameters("rms_norm", x, weight=weight)
    return norm(x, weight, None, eps, layer=False)


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """``fma((x - u) * r, weight, bias)`` with exact sums for ``u`` and ``r``; as `rms_norm`."""
    x = checked("layer_norm", x)
    weight, bias = _parameters("layer_norm", x, weight=weight, bias=bias)
    return norm(x, weight, bias, eps, layer=True)


def _rows_along(op: str, x: torch.Tensor, dim: int) -> torch.Tensor:
    """`x` with `dim` as the last axis."""
    x = checked(op, x)
    axis = axis_of(op, dim, x.dim())
    return x.movedim(axis, -1) if x.dim() else x.view(1)


def _softmax(kind: str, row: torch.Tensor, out: torch.dtype) -> torch.Tensor:
    if row.numel():
        return engine.softmax(kind, row, out)
    # No terms: a sum of +0, whose logarithm is -Inf.
    shape = row.shape[:-1] if kind == "logsumexp" else row.shape
    return row.new_full(shape, -torch.inf, dtype=out)


def _back(y: torch.Tensor, dim: int, x: torch.Tensor) -> torch.Tensor:
    return y.movedim(-1, dim) if x.dim() else y.view(())


def _last(op: str, x: torch.Tensor, dim: Dim) -> torch.Tensor:
    """The reduced axes as one, the last."""
    axes = axes_of(op, dim, x.dim())
    if len(axes) == 1 and axes[0] == x.dim() - 1:
        return x
    kept = [i for i in range(x.dim()) if i not in axes]
    moved = x.permute(*kept, *axes) if x.dim() else x
    n = moved.shape[len(kept) :].numel()
    return moved.reshape(*(x.shape[i] for i in kept), n)


def _shaped(y: torch.Tensor, x: torch.Tensor, dim: Dim, keepdim: bool, op: str) -> torch.Tensor:
    if not keepdim:
        return y
    axes = axes_of(op, dim, x.dim())
    return y.view([1 if i in axes else size for i, size in enumerate(x.shape)])


def _type(op: str, x: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    out = x.dtype if dtype is None else dtype
    return result_type(op, "dtype", x, out)


def _parameters(
    op: str, x: torch.Tensor, **parameters: torch.Tensor | None
) -> list[torch.Tensor | None]:
    """The parameters, as an engine can read them."""
    if not x.dim():
        raise ShapeError(f"exact.{op}: a scalar has no axis to normalise")
    found = [None if p is None else checked(op, p) for p in parameters.values()]
    for name, p in zip(parameters, found, strict=True):
        if p is None:
            continue
        if p.shape != x.shape[-1:]:
            raise ShapeError(f"exact.{op}: {name} {tuple(p.shape)} does not fit {tuple(x.shape)}")
        if p.dtype is not x.dtype or p.device != x.device:
            raise DTypeError(f"exact.{op}: {name} must be {x.dtype} on {x.device}")
    return found
