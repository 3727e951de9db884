"""How the portable contracts write a NaN: as a GPU does, all ones but the sign."""

from __future__ import annotations

import torch

from samebits.engines import family
from samebits.engines.cpu import DTYPE_CODE, _cpu


def written(x: torch.Tensor) -> torch.Tensor:
    """A result as the family in force writes it: `x` itself, changed in place where it is NaN.

    Args:
        x: fp32, bf16 or fp16.
    """
    if not family.portable() or not x.numel():
        return x
    code = DTYPE_CODE[x.dtype]
    # What keeps its strides in `empty_like` has no gaps.
    if x.is_contiguous() or torch.empty_like(x, device="meta").stride() == x.stride():
        _cpu.chips_nan(x.data_ptr(), x.numel(), code)
    else:
        dense = x.contiguous()
        _cpu.chips_nan(dense.data_ptr(), dense.numel(), code)
        x.copy_(dense)
    return x
