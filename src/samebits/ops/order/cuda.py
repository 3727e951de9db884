"""Ordering on a GPU. Arguments are validated by the caller; the axis is the last one."""

from __future__ import annotations

import torch

from samebits.engines.triton.order import select

#: What the kernels select in one launch; other dtypes are sorted.
SELECTED = (torch.float32, torch.bfloat16, torch.float16)


def topk(x: torch.Tensor, k: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Of rows [rows, n] with 1 <= k <= n and a dtype of `SELECTED`."""
    return select.topk(_rows(x), k, largest)


def sort(x: torch.Tensor, dim: int, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Stable. A stable sort of integers has one answer, whatever sorts them."""
    if not x.dtype.is_floating_point:
        values, indices = torch.sort(x, stable=True, dim=dim, descending=descending)
        return values, indices
    keys = select.sort_keys(x.resolve_neg().contiguous())
    indices = torch.sort(keys, stable=True, dim=dim, descending=descending)[1]
    return (x.gather(dim, indices) if x.dim() else x.clone()), indices


def argextreme(x: torch.Tensor, largest: bool) -> torch.Tensor:
    """Of rows [rows, n], n >= 1."""
    return select.argextreme(_rows(x.to(torch.uint8) if x.dtype is torch.bool else x), largest)


def _rows(x: torch.Tensor) -> torch.Tensor:
    x = x.resolve_neg()
    return x if x.stride(1) == 1 else x.contiguous()
