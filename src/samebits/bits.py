"""Bits as integers: the only way this project compares results.

A float comparison hides that -0.0 and +0.0 differ and that NaN has a payload; an integer view does
not.
"""

from __future__ import annotations

import torch

_INT_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def view(x: torch.Tensor) -> torch.Tensor:
    """The integer view of `x` (same shape; complex numbers give a trailing axis of 2)."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    if x.dtype is torch.bool or not x.dtype.is_floating_point:
        return x
    return x.detach().resolve_neg().contiguous().view(_INT_OF_SIZE[x.element_size()])


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True when shape, dtype and every bit agree."""
    return a.shape == b.shape and a.dtype == b.dtype and bool((view(a) == view(b)).all())


def count_different(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many elements differ in any bit. Shapes and dtypes must agree.

    Raises:
        ValueError: the tensors have different shapes or dtypes.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(
            f"bits of {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype} cannot be compared"
        )
    return int((view(a) != view(b)).sum())
