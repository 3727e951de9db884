"""What every public function that runs on the CPU engine asks of its tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.errors import DTypeError, SamebitsError, ShapeError

_ALL_AXES = tuple(tuple(range(rank)) for rank in range(65))


def engine_tensor(op: str, x: torch.Tensor, *, gpu: bool = False) -> torch.Tensor:
    """`x`, if the engine can read it.

    Args:
        gpu: the operation has kernels for CUDA tensors.

    Raises:
        DTypeError: not a dense fp32, bf16 or fp16 tensor in CPU memory (or on a GPU, with `gpu`).
        SamebitsError: a gradient is required: it flows under the switch, not through ``ops``.
    """
    if not isinstance(x, torch.Tensor):
        raise DTypeError(
            f"{op} takes tensors, not {type(x).__name__}: look at the order of arguments"
        )
    readable = x.is_cpu or (gpu and x.is_cuda)
    if x.dtype not in DTYPE_CODE or not readable or x.layout is not torch.strided:
        kind = x.dtype if x.layout is torch.strided else f"{x.layout} {x.dtype}"
        advice = "Cast it to torch.float32"
        if not x.dtype.is_floating_point:
            advice = "torch's own operation is exact for integers; otherwise cast to torch.float32"
        place = "in CPU or CUDA memory" if gpu else "in CPU memory"
        raise DTypeError(
            f"{op} takes dense float32, bfloat16 or float16 tensors {place}, not {kind} on "
            f"{x.device}. {advice}"
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise SamebitsError(
            f"samebits.ops.{op} has no backward. Call torch's own function under "
            "samebits.deterministic(), where gradients are covered too, or use torch.no_grad()"
        )
    return x.resolve_neg() if x.is_neg() else x


def dense(op: str, *tensors: object) -> None:
    """Raises DTypeError unless all are dense tensors; None is left out."""
    for x in tensors:
        if x is None:
            continue
        if not isinstance(x, torch.Tensor):
            raise DTypeError(
                f"{op} takes tensors, not {type(x).__name__}: look at the order of arguments"
            )
        if x.layout is not torch.strided:
            raise DTypeError(f"{op} takes dense tensors, not {x.layout}")


def all_axes(rank: int) -> tuple[int, ...]:
    """0, 1, ... rank - 1."""
    return _ALL_AXES[rank]


def axis_of(op: str, dim: int, rank: int) -> int:
    """`dim` counted from the front; a scalar has one axis.

    Raises:
        ShapeError: out of range.
    """
    size = rank or 1
    if not -size <= dim < size:
        raise ShapeError(f"{op}: dim {dim} is out of range for a tensor with {rank} axes")
    return dim % size


def axes_of(op: str, dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The axes that `dim` names, counted from the front; None and () mean all.

    Raises:
        ShapeError: out of range, or named twice.
    """
    if dim is None:
        return _ALL_AXES[rank]
    if isinstance(dim, int):
        return (axis_of(op, dim, rank),) if rank else _scalar(op, dim)
    if len(dim) == 1:
        return (axis_of(op, dim[0], rank),) if rank else _scalar(op, dim[0])
    if len(dim) == 0:
        return _ALL_AXES[rank]
    axes = tuple(axis_of(op, d, rank) for d in dim)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{op}: dim {tuple(dim)} names an axis twice")
    return axes if rank else ()


def _scalar(op: str, dim: int) -> tuple[int, ...]:
    axis_of(op, dim, 0)
    return ()


def one_device(op: str, *tensors: torch.Tensor | None) -> None:
    """Raises DTypeError unless all tensors lie on one device."""
    devices = {t.device for t in tensors if t is not None}
    if len(devices) > 1:
        raise DTypeError(f"{op}: tensors on {sorted(map(str, devices))}: move them to one device")
