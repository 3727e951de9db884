"""Elementwise functions and gates of CUDA tensors."""

from __future__ import annotations

import torch

from samebits.engines import family
from samebits.engines.triton.rows import pointwise as engine
from samebits.errors import DTypeError, ShapeError, UncoveredError
from samebits.ops.checks import engine_tensor, one_device
from samebits.ops.gpu import matrix, recorded


def unary(op: str, kernel: str, x: torch.Tensor) -> torch.Tensor:
    """A function of every element: a kernel of the engine, or torch's own.

    torch's elementwise CUDA kernels compute every element by the same code, wherever it lies. It is
    not the CPU's code: the portable contracts take ours alone.

    Raises:
        DTypeError: see `checks`.
        UncoveredError: the function is not portable, and the portable contracts are in force.
    """
    x = engine_tensor(op, x, gpu=True)
    portable = family.portable()
    if kernel in (engine.PORTABLE_FUNCTIONS if portable else engine.FUNCTIONS):
        return _unary(kernel, x)
    if portable:
        raise UncoveredError(
            op, "on a GPU it does not have a CPU's bits",
            remedy=f"Portable are {', '.join(sorted(engine.PORTABLE_FUNCTIONS))}.",
        )  # fmt: skip
    y: torch.Tensor = getattr(torch.ops.aten, op)(x)
    return y


@recorded
def _unary(kernel: str, x: torch.Tensor) -> torch.Tensor:
    return engine.unary(kernel, x)


def gated(op: str, kernel: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """f(gate) * up, f(gate) rounded first; contiguous.

    Raises:
        DTypeError: two dtypes or devices, or see `checks`.
        ShapeError: shapes that do not broadcast.
    """
    return _gated(op, kernel, engine_tensor(op, gate, gpu=True), engine_tensor(op, up, gpu=True))


@recorded
def _gated(op: str, kernel: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    one_device(op, gate, up)
    if gate.dtype is not up.dtype:
        raise DTypeError(f"{op}: gate is {gate.dtype} and up {up.dtype}: convert one")
    if gate.shape != up.shape:
        try:
            gate, up = torch.broadcast_tensors(gate, up)  # type: ignore[no-untyped-call]
        except RuntimeError:
            raise ShapeError(
                f"{op}: {tuple(gate.shape)} and {tuple(up.shape)} do not broadcast"
            ) from None
    shape = gate.shape
    if not gate.numel():
        return torch.empty(shape, dtype=gate.dtype, device=gate.device)
    n = shape[-1] if shape else 1
    y = engine.gated(kernel, matrix(op, gate, n), matrix(op, up, n))
    return y if y.shape == shape else y.view(shape)
