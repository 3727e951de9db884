"""Embedding: rows of a table, moved. No number is computed, so there is nothing to promise but
this: a row's bytes are the table's. Its gradient is a scattered sum, see `samebits.ops.scatter`."""

from __future__ import annotations

import torch

from samebits.errors import DTypeError, ShapeError


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``weight[ids]``, also for NaN payloads and on every device.

    Args:
        ids: [...] int32 or int64 in 0 .. rows - 1.
        weight: [rows, dim], any dtype.

    Returns:
        [..., dim].

    Raises:
        ShapeError, DTypeError: operands do not fit.
        IndexError: an id is out of range (on a GPU, where nobody waits, a device assertion).
    """
    if weight.dim() != 2:
        raise ShapeError(f"embedding: weight must be [rows, dim], not {tuple(weight.shape)}")
    if ids.dtype not in (torch.int32, torch.int64) or ids.device != weight.device:
        raise DTypeError(
            f"embedding: ids are int32 or int64 on {weight.device}, not {ids.dtype} on {ids.device}"
        )
    rows = weight.index_select(0, ids.reshape(-1))
    return rows.view(*ids.shape, weight.shape[1])
