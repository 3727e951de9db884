"""What every matrix product asks of its operands."""

from __future__ import annotations

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.errors import DTypeError


def plain(x: torch.Tensor) -> torch.Tensor:
    """`x` with a pending negation carried out (views of ``.imag`` of a conjugate have one)."""
    return x.resolve_neg() if x.is_neg() else x


def check_tensor(op: str, name: str, x: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises unless `x` is a dense CPU tensor of `dtype`, and `dtype` one that the engine takes.

    Raises:
        DTypeError: with the reason.
    """
    if x.layout is not torch.strided:
        raise DTypeError(f"{op}: {name} has layout {x.layout}; make it dense with .to_dense()")
    if not x.is_cpu:
        raise DTypeError(f"{op}: {name} is on {x.device}; this engine computes on the CPU only")
    if x.dtype not in DTYPE_CODE:
        raise DTypeError(
            f"{op}: {name} is {x.dtype}; no contract covers it: use float32, bfloat16 or float16"
        )
    if x.dtype is not dtype:
        raise DTypeError(f"{op}: operands must have one dtype, not {dtype} and {x.dtype} ({name})")
