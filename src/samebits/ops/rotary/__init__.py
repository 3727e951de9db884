"""Rotary position embedding (Su et al. 2021)."""

from __future__ import annotations

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import pointwise as engine
from samebits.errors import DTypeError, ShapeError
from samebits.ops.checks import one_device
from samebits.ops.norm import rms_norm

__all__ = ["rotary", "rotary_qk"]


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
    if x.is_neg() or cos.is_neg() or sin.is_neg():
        x, cos, sin = x.resolve_neg(), cos.resolve_neg(), sin.resolve_neg()
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
    cos, sin = (f if f.stride(1) == 1 else f.contiguous() for f in (cos, sin))
    rows = x if x.dim() == 3 else x.reshape(-1, *x.shape[-2:])
    at = positions.to(torch.int64).reshape(-1).contiguous()
    y = engine.rotary_at(rows, cos, sin, interleaved, at)
    return y if x.dim() == 3 else y.view(x.shape)


def rotary_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    interleaved: bool = False,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rotary` of queries and keys, each head normalised by `rms_norm` first if weights are given.

    The bits of the operations one after the other, on a GPU mostly in one launch.

    Args:
        q: [T, Hq, D]; k: [T, Hk, D]; dtypes and strides as in `rotary`.
        cos, sin, positions, interleaved: as in `rotary` with positions [T].
        q_weight, k_weight: [D] of the norms, of q's dtype; both or none.
        eps: of the norms.

    Returns:
        [T, Hq, D] and [T, Hk, D], contiguous.

    Raises:
        DTypeError, ShapeError: as `rotary` and `rms_norm`; one weight without the other.
    """
    if (q_weight is None) != (k_weight is None):
        raise ShapeError("rotary_qk: give the weights of both norms, or none")
    if _fused(q, k, cos, sin, positions, interleaved, q_weight, k_weight):
        from samebits.ops.rotary import cuda

        return cuda.rotary_qk(q, k, cos, sin, positions, q_weight, k_weight, eps)
    if q_weight is not None:
        q = rms_norm(q, q.shape[-1:], q_weight, eps)
        k = rms_norm(k, k.shape[-1:], k_weight, eps)
    return (
        rotary(q, cos, sin, interleaved, positions=positions),
        rotary(k, cos, sin, interleaved, positions=positions),
    )


def _fused(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    interleaved: bool,
    *weights: torch.Tensor | None,
) -> bool:
    """Whether the arguments are such as the one kernel takes; all others go one by one."""
    if not q.is_cuda or interleaved or q.dim() != 3 or k.dim() != 3 or q.dtype not in DTYPE_CODE:
        return False
    (tokens, _, d), half = q.shape, q.shape[-1] // 2
    alike = all(x.dtype is q.dtype and x.device == q.device for x in (k, cos, sin))
    return (
        alike
        and 2 <= d <= 1024
        and d & (d - 1) == 0
        and k.shape[::2] == q.shape[::2]
        and cos.dim() == 2
        and cos.shape == sin.shape
        and cos.shape[1] == half
        and positions.shape == (tokens,)
        and positions.device == q.device
        and positions.dtype in (torch.int32, torch.int64)
        and not any(x.is_neg() for x in (q, k, cos, sin))
        and all(
            w is None
            or (w.shape == (d,) and w.dtype is q.dtype and w.device == q.device and not w.is_neg())
            for w in weights
        )
    )
