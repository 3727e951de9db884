"""What row operations on CUDA tensors share: matrices of rows, and their schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from samebits.contract import ContractKey
from samebits.contract.operands import dtype_name
from samebits.engines.driver import recipes
from samebits.engines.triton import contract_class
from samebits.errors import ShapeError
from samebits.plan import planner

if TYPE_CHECKING:
    from samebits.engines.triton.rows.schedule import RowSchedule

#: Rows that one launch takes, and elements of a row: kernels count them in 32 bits.
MOST = 2**31 - 2**14


F = TypeVar("F", bound=Callable[..., Any])


def recorded(work: F) -> F:
    """An operation on CUDA tensors whose later calls of a kind start without Python.

    Args:
        work: takes positional arguments, and depends on nothing but them and the plan in force.
    """
    run, forget = recipes.recorded(work)
    planner.on_change.append(forget)
    return run


@lru_cache(maxsize=1024)
def row_key(op: str, dtype: torch.dtype, out_dtype: torch.dtype, device: str) -> ContractKey:
    """The contract key of a row operation on a device class."""
    return ContractKey(
        op=op, dtype=dtype_name(dtype), out_dtype=dtype_name(out_dtype), device=device
    )


def schedule_for(op: str, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> RowSchedule:
    """The schedule of a row operation on rows `x` [..., n]."""
    key = row_key(op, x.dtype, out_dtype or x.dtype, contract_class(x.device.index))
    return cast("RowSchedule", planner.row_for(key, k=x.shape[-1]).at(x.shape[:-1].numel()))


def matrix(op: str, x: torch.Tensor, n: int) -> torch.Tensor:
    """`x` as [rows, n] with a contiguous last axis: a view if its strides allow it, else a copy.

    Raises:
        ShapeError: more rows, or longer ones, than a kernel counts.
    """
    rows = x.numel() // n if n else 0
    if rows > MOST or n > MOST:
        raise ShapeError(f"{op}: {rows} rows of {n} elements are too many: cut them up")
    flat = x if x.dim() == 2 and x.shape[1] == n else x.reshape(rows, n)
    return flat if flat.stride(-1) == 1 or n <= 1 else flat.contiguous()


def strided_rows(op: str, x: torch.Tensor, n: int) -> torch.Tensor:
    """`x` as [rows, n] or [outer, inner, n], its last axis contiguous: a view if strides allow it.

    Heads that lie in a wider matrix, q[:, heads, D] of a fused projection, need no copy.
    """
    if x.dim() == 3 and x.shape[-1] == n and (x.stride(-1) == 1 or n <= 1):
        matrix_like = x.stride(0) == x.shape[1] * x.stride(1)
        if not matrix_like and max(x.shape[0] * x.shape[1], n) <= MOST:
            return x
    return matrix(op, x, n)
