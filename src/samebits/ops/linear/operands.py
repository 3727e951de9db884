"""What every matrix product asks of its operands."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from types import ModuleType

import torch
from torch.autograd import forward_ad

from samebits.engines.cpu import DTYPE_CODE
from samebits.errors import DTypeError

_is_grad_enabled = torch.is_grad_enabled


@lru_cache(maxsize=1)
def cuda_products() -> ModuleType:
    """The products on CUDA: imported when the first such tensor shows up."""
    return import_module("samebits.ops.linear.cuda")


def plain(x: torch.Tensor) -> torch.Tensor:
    """`x` with a pending negation carried out (views of ``.imag`` of a conjugate have one).

    Raises:
        DTypeError: not a tensor.
    """
    if not isinstance(x, torch.Tensor):
        raise DTypeError(f"operands must be torch tensors, not {type(x).__name__}")
    return x.resolve_neg() if x.is_neg() else x


def needs_graph(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> bool:
    """Whether autograd, backward or forward mode, has to see an operation on these operands."""
    return (
        _is_grad_enabled()
        and (a.requires_grad or b.requires_grad or (c is not None and c.requires_grad))
    ) or forward_ad._current_level >= 0


def check_tensor(op: str, name: str, x: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises unless `x` is a dense tensor of `dtype`, and `dtype` one that the engines take.

    Raises:
        DTypeError: with the reason.
    """
    if x.layout is not torch.strided:
        raise DTypeError(f"{op}: {name} has layout {x.layout}; make it dense with .to_dense()")
    if not (x.is_cpu or x.is_cuda):
        raise DTypeError(f"{op}: {name} is on {x.device}; engines compute on the CPU and on CUDA")
    if x.dtype not in DTYPE_CODE:
        raise DTypeError(
            f"{op}: {name} is {x.dtype}; no contract covers it: use float32, bfloat16 or float16"
        )
    if x.dtype is not dtype:
        raise DTypeError(f"{op}: operands must have one dtype, not {dtype} and {x.dtype} ({name})")


def together(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both are in CPU memory, or both on one CUDA device."""
    if a.is_cpu:
        return b.is_cpu
    return a.is_cuda and a.get_device() == b.get_device()


def check_device(op: str, x: torch.Tensor, **others: torch.Tensor | None) -> None:
    """Raises unless the other operands are where `x` is.

    Raises:
        DTypeError: with both devices.
    """
    for name, other in others.items():
        if other is not None and other.device != x.device:
            raise DTypeError(
                f"{op}: operands must be on one device, not {x.device} and {other.device} ({name})"
            )
