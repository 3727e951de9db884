"""Rotary position embedding (Su et al. 2021)."""

from __future__ import annotations

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import pointwise as engine
from samebits.errors import DTypeError, ShapeError
from samebits.ops.checks import one_device

__all__ = ["rotary"]


def rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    *,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotates pairs of elements: ``(a cos - b sin, b cos + a sin)``.

    Each product and the sum are IEEE operations rounded to the dtype: the bits of the usual eager
    form ``x * cos + rotate_half(x) * sin``, at any position and in any batch.

    Args:
        x: [..., D] fp32, bf16 or fp16, D even; any strides.
        cos, sin: broadcastable to [..., D] (one factor an element, as in transformers) or to
            [..., D/2] (one factor a pair); of x's dtype.
        interleaved: pairs are (2i, 2i+1) instead of (i, i + D/2).
        positions: [..., T] integers for x [..., T, heads, D]: cos and sin are caches [P, D] or
            [P, D/2], of which a token takes the row of its position. All lie in [0, P).

    Returns:
        [..., D], contiguous, of x's dtype.

    Raises:
        DTypeError: another dtype, mixed dtypes or devices.
        ShapeError: D is odd, or the factors do not fit.
    """
    if (
        x.dtype not in DTYPE_CODE
        or not (x.dtype == cos.dtype == sin.dtype)
        or not (x.is_cpu or x.is_cuda)
    ):
        raise DTypeError(
            f"rotary takes CPU or CUDA tensors of one dtype of float32, bfloat16 and float16, not "
            f"{x.dtype}, {cos.dtype} and {sin.dtype}: convert them first"
        )
    one_device("rotary", x, cos, sin, positions)
    d = x.shape[-1] if x.dim() else 0
    if d == 0 or d % 2:
        raise ShapeError(f"rotary needs an even last axis, not shape {tuple(x.shape)}")
    if positions is not None:
        return _looked_up(x, cos, sin, interleaved, positions)
    for name, factor in (("cos", cos), ("sin", sin)):
        if (
            not factor.dim()
            or factor.shape[-1] not in (d, d // 2)
            or factor.shape[-1] != cos.shape[-1]
        ):
            raise ShapeError(
                f"{name} of shape {tuple(factor.shape)} does not fit x {tuple(x.shape)}"
            )
        try:
            lead = torch.broadcast_shapes(factor.shape[:-1], x.shape[:-1])  # type: ignore[no-untyped-call]
        except RuntimeError:
            lead = torch.Size()
        if lead != x.shape[:-1]:
            raise ShapeError(
                f"{name} of shape {tuple(factor.shape)} does not fit x {tuple(x.shape)}"
            )
    if x.is_cuda:
        from samebits.ops.rotary import cuda

        return cuda.rotary(x, cos, sin, None, interleaved)
    return engine.rotary(x, cos, sin, interleaved)


def _looked_up(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    positions: torch.Tensor,
) -> torch.Tensor:
    d = x.shape[-1]
    if x.dim() < 3 or positions.shape != x.shape[:-2]:
        raise ShapeError(
            f"rotary: x {tuple(x.shape)} is [..., T, heads, D] and needs positions "
            f"{tuple(x.shape[:-2])}, not {tuple(positions.shape)}"
        )
    if positions.dtype not in (torch.int32, torch.int64):
        raise DTypeError(f"rotary: positions are int32 or int64, not {positions.dtype}")
    if cos.shape != sin.shape or cos.dim() != 2 or cos.shape[1] not in (d, d // 2):
        raise ShapeError(
            f"rotary: caches are [P, {d}] or [P, {d // 2}], not {tuple(cos.shape)} and "
            f"{tuple(sin.shape)}"
        )
    if x.is_cuda:
        from samebits.ops.rotary import cuda

        return cuda.rotary(x, cos, sin, positions, interleaved)
    if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < len(cos):
        raise ShapeError(f"rotary: a position is outside [0, {len(cos)})")
    cos, sin = (f[positions.long()][..., None, :] for f in (cos, sin))
    return engine.rotary(x, cos, sin, interleaved)
