"""IEEE 754-2019's augmented operations, and sums in bins, which they are there for.

An augmented operation gives two tensors: the result rounded to nearest with ties toward zero, and
what the rounding left over. `samebits.contract.exact.augmented` and `binned` say exactly what.
All take fp32 or fp64 tensors on a CPU and ignore gradients that nobody records.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contract.exact.augmented import AugmentedOp
from samebits.engines.cpu import augmented as engine
from samebits.errors import DTypeError, SamebitsError, ShapeError
from samebits.ops.checks import axes_of

__all__ = [
    "augmented_addition", "augmented_multiplication", "augmented_subtraction", "binned_sum",
]  # fmt: skip

Pair = tuple[torch.Tensor, torch.Tensor]


def augmented_addition(x: torch.Tensor, y: torch.Tensor) -> Pair:
    """``x + y`` and its error: the two add up to exactly x + y, unless it overflows.

    Args:
        x, y: fp32 or fp64, of one dtype; shapes broadcast.

    Returns:
        (result, error), both of the broadcast shape. An error of zero has the result's sign; where
        the result is Inf or NaN, so is the error.

    Raises:
        DTypeError: another dtype, layout or device. ShapeError: shapes that do not broadcast.
        SamebitsError: a gradient is required.
    """
    return _run("addition", x, y)


def augmented_subtraction(x: torch.Tensor, y: torch.Tensor) -> Pair:
    """``x - y`` and its error; otherwise as `augmented_addition`."""
    return _run("subtraction", x, y)


def augmented_multiplication(x: torch.Tensor, y: torch.Tensor) -> Pair:
    """``x * y`` and its error, which is rounded like the result where it underflows; otherwise as
    `augmented_addition`."""
    return _run("multiplication", x, y)


def binned_sum(
    x: torch.Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> torch.Tensor:
    """A sum over `dim` (None or (): all axes) with the same bits in any order of the elements.

    Not exact: the error is at most ``n * 2^(-2W - 1) * max |x|``, with W = 13 for fp32 and 40 for
    fp64, and half a unit in the last place: `samebits.contract.exact.binned.error_bound`.

    Args:
        x: fp32 or fp64, any shape and strides.

    Raises:
        DTypeError, ShapeError, SamebitsError: as `augmented_addition`; or a dim out of range.
    """
    x = _checked("binned_sum", x)
    axes = axes_of("binned_sum", dim, x.dim())
    kept = [i for i in range(x.dim()) if i not in axes]
    moved = x.permute(*kept, *axes) if x.dim() else x
    count = moved.shape[: len(kept)].numel()
    y = engine.binned_sum(moved.reshape(count, x.numel() // count if count else 0))
    if keepdim:
        return y.view([1 if i in axes else size for i, size in enumerate(x.shape)])
    return y.view([x.shape[i] for i in kept])


def _run(op: AugmentedOp, x: torch.Tensor, y: torch.Tensor) -> Pair:
    name = f"augmented_{op}"
    x, y = _checked(name, x), _checked(name, y)
    if x.dtype is not y.dtype:
        raise DTypeError(f"{name}: {x.dtype} and {y.dtype}: convert one")
    try:
        x, y = torch.broadcast_tensors(x, y)  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ShapeError(
            f"{name}: {tuple(x.shape)} and {tuple(y.shape)} do not broadcast"
        ) from None
    return engine.augmented(op, x.contiguous(), y.contiguous())


def _checked(op: str, x: torch.Tensor) -> torch.Tensor:
    """`x`, if the engine can read it."""
    if x.dtype not in (torch.float32, torch.float64) or x.layout is not torch.strided:
        raise DTypeError(
            f"{op} takes dense float32 or float64 tensors, not {x.layout} {x.dtype}: bf16 and fp16 "
            "fit into float32 exactly"
        )
    if not x.is_cpu:
        raise DTypeError(f"{op} computes on a CPU, not on {x.device}: move the tensor with .cpu()")
    if x.requires_grad and torch.is_grad_enabled():
        raise SamebitsError(f"{op} has no backward: use torch.no_grad() or .detach()")
    return x.resolve_neg() if x.is_neg() else x
