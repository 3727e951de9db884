"""Ordering: top-k, sort, argmax, k-th value. Equal values are taken in the order of their index.

-0 equals +0, NaN is larger than everything, as in ``torch.sort``. No value is computed, so the only
question a contract has to settle is ties: the lowest index wins. ``torch.argmax`` and ``torch.max``
do that on a CPU already; ``torch.topk``, ``torch.sort`` and ``torch.kthvalue`` do not.
"""

from __future__ import annotations

import math
from types import ModuleType

import torch

from samebits.engines import cpu
from samebits.engines.cpu import order as engine
from samebits.errors import DTypeError, ShapeError


def topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` largest (or smallest) values along `dim`, best first, ties to the lowest index.

    The result equals the first `k` of a stable sort, and is always sorted (`sorted` is accepted for
    compatibility with ``torch.topk``).

    Args:
        x: any shape, any real dtype.

    Returns:
        (values, indices), each with size `k` along `dim`; indices are int64.

    Raises:
        ShapeError: `k` is outside 0..size of `dim`.
    """
    if x.dim() == 0:
        values, indices = topk(x[None], k, 0, largest)
        return values[0] if k else values, indices[0] if k else indices
    n = x.shape[dim]
    if not 0 <= k <= n:
        raise ShapeError(f"topk: k={k} is out of range for a dimension of size {n}")
    if k == 0:  # vLLM asks for it where a request wants the logprobs of its prompt alone
        _real("topk", x)
        values = x.narrow(dim, 0, 0).contiguous()
        return values, torch.empty_like(values, dtype=torch.int64)
    if x.dtype not in cpu.DTYPE_CODE or x.device.type not in ("cpu", "cuda"):
        values, indices = sort(x, dim, descending=largest)
        return values.narrow(dim, 0, k).contiguous(), indices.narrow(dim, 0, k).contiguous()
    last = (x.resolve_neg() if x.is_neg() else x).movedim(dim, -1)
    rows = last.reshape(math.prod(last.shape[:-1]), n)
    values, indices = _engine(x).topk(rows, k, largest)
    shape = (*last.shape[:-1], k)
    return (
        values.reshape(shape).movedim(-1, dim).contiguous(),
        indices.reshape(shape).movedim(-1, dim).contiguous(),
    )


def sort(
    x: torch.Tensor, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stable sort along `dim`: (values, int64 indices) of x's shape. Any real dtype."""
    _real("sort", x)
    if x.is_cuda:
        values, indices = _engine(x).sort(x, dim, descending)
        return values, indices
    values, indices = torch.sort(x, stable=True, dim=dim, descending=descending)
    return values, indices


def argsort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    """Indices (int64) of a stable sort along `dim`."""
    return sort(x, dim, descending)[1]


def kthvalue(
    x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k-th smallest value along `dim` (k counts from 1) and its index in a stable sort.

    Raises:
        ShapeError: `k` is outside 1..size of `dim`.
    """
    if x.dim() == 0:
        values, indices = kthvalue(x[None], k, 0)
        return values.reshape(()), indices.reshape(())
    if not 1 <= k <= x.shape[dim]:
        raise ShapeError(f"kthvalue: k={k} is out of range for a dimension of size {x.shape[dim]}")
    values, indices = sort(x, dim)
    values, indices = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    if keepdim:
        return values.contiguous(), indices.contiguous()
    return values.squeeze(dim).contiguous(), indices.squeeze(dim).contiguous()


def argmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """Index (int64) of the largest value, the lowest one if there are several; NaN is largest."""
    _real("argmax", x)
    return _argextreme(x, dim, keepdim, True) if x.is_cuda else torch.argmax(x, dim, keepdim)


def argmin(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """Index (int64) of the smallest value, the lowest one if there are several; NaN wins."""
    _real("argmin", x)
    return _argextreme(x, dim, keepdim, False) if x.is_cuda else torch.argmin(x, dim, keepdim)


def _argextreme(x: torch.Tensor, dim: int | None, keepdim: bool, largest: bool) -> torch.Tensor:
    """On a GPU."""
    if x.dim() == 0 or dim is None:
        shape = (1,) * x.dim() if keepdim else ()
        return _argextreme(x.reshape(1, -1), 1, False, largest).reshape(shape)
    if x.shape[dim] == 0:
        raise ShapeError(f"argmax and argmin: dimension {dim} of {tuple(x.shape)} is empty")
    last = x.movedim(dim, -1)
    rows = last.reshape(math.prod(last.shape[:-1]), x.shape[dim])
    indices: torch.Tensor = _engine(x).argextreme(rows, largest).view(last.shape[:-1])
    return indices.unsqueeze(dim) if keepdim else indices


def _engine(x: torch.Tensor) -> ModuleType:
    """What orders the elements of `x`."""
    if x.is_cuda:
        from samebits.ops.order import cuda

        return cuda
    return engine


def _real(op: str, x: torch.Tensor) -> None:
    if x.is_complex():
        raise DTypeError(f"{op}: complex numbers have no order; sort their absolute values instead")
