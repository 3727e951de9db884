"""What products in CUDA C++ ask of their operands."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from samebits.contract import LinearContract


def refusal(
    contract: LinearContract,
    x: torch.Tensor,
    w: torch.Tensor,
    c: torch.Tensor | None,
    by_rows: Mapping[str, torch.Tensor],
) -> str | None:
    """Why a kernel for y = alpha * x @ w.T + beta * c does not take this; None if nothing is wrong.

    Args:
        c: None, or a row of x's dtype that all rows share.
        by_rows: what is read or written in rows of 16 bytes, by name.
    """
    if not {"alpha", "bias"} >= set(contract.epilogue):
        return f"the epilogue is {contract.epilogue}"
    if x.dim() != 2 or w.dim() != 2:
        return "the product is batched"
    for name, t in by_rows.items():
        if t.stride(1) != 1 or t.stride(0) * t.element_size() % 16 or t.data_ptr() % 16:
            return f"rows of {name} are not aligned: strides {t.stride()} at {t.data_ptr():#x}"
    if c is not None and not (c.dtype is x.dtype and c.stride(-1) == 1 and _shared(c)):
        return "c is no row of x's dtype for all rows"
    return None


def _shared(c: torch.Tensor) -> bool:
    """Whether all rows of c are one in memory. The stride of an axis of one entry means nothing."""
    return all(s == 0 or n == 1 for s, n in zip(c.stride()[:-1], c.shape, strict=False))
