"""Scaled dot product attention with ONE contract for prefill, chunks, decode and verification.

A row's bits depend on the row and on the keys it sees, in their order, and on nothing else: not on
the batch, the other rows, padding, masked keys (which may hold NaN), chunk edges, pages, strides,
threads or instruction set. `reference.py` defines the bits.
"""

from __future__ import annotations

import math

import torch

from samebits.errors import ShapeError
from samebits.ops.attention import checks
from samebits.ops.attention.autograd import differentiable, needs_grad
from samebits.ops.attention.dispatch import dense, device_integers, gpu_scales, on_gpu, operands
from samebits.ops.attention.packed import attention_paged, attention_varlen
from samebits.ops.attention.store import store_paged

__all__ = ["attention", "attention_paged", "attention_varlen", "store_paged"]

_OP = "attention"


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    q_start: int | torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
    enable_gqa: bool = True,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(q k^T * scale + mask) v, with bits that no neighbour can change.

    Args:
        q: [..., Hq, T, D], fp32 (CPU only), bf16 or fp16, any strides.
        k: [..., Hkv, S, D], same dtype, or on a GPU float8_e4m3fn; Hq must be a multiple of Hkv
            (GQA, MQA). Leading dimensions of q, k and v broadcast.
        v: [..., Hkv, S, Dv], dtype of k.
        scale: factor of the scores; None means 1 / sqrt(D).
        causal: row i at position p = q_start + i sees the keys 0..p only.
        q_start: position of row 0, or one for each sequence (an integer tensor over the flattened
            leading dimensions). It may be left out when T == S (then 0) or when neither `causal`
            nor `window` is used.
        mask: broadcasts to [..., Hq, T, S]. bool: True = the row sees the key. Floating: added to
            the scaled score (a NaN makes the row NaN); -Inf and the dtype's lowest finite value
            mean that the key is not seen.
        window: keys further than this from a row's position are not seen: ``|p - j| < window``;
            with `causal` the row sees itself and the window - 1 keys before it.
        softcap: scores become ``softcap * tanh(score / softcap)`` before the mask is added.
        sinks: [Hq] logits that join the denominator only.
        k_scale, v_scale: static factors of fp8 k and v: a number, or a tensor of one or of Hkv
            elements.
        enable_gqa: allow Hq != Hkv.
        return_lse: also return the logsumexp of the scores, [..., Hq, T] in fp32, not
            differentiable.

    Returns:
        [..., Hq, T, Dv] in q's dtype. A row that sees no key is +0.

    Raises:
        ShapeError: shapes, offsets or options that do not fit together.
        DTypeError: a dtype, layout or device that is not covered.
    """
    options = (
        scale, causal, q_start, mask, window, softcap, sinks, k_scale, v_scale, enable_gqa,
        return_lse,
    )  # fmt: skip
    if getattr(q, "is_cuda", False) and not _needs_grad(q, k, v, mask, sinks):
        return on_gpu(_attention)(q, k, v, *options)  # type: ignore[no-any-return]
    return _attention(q, k, v, *options)


def _needs_grad(*tensors: object) -> bool:
    """Whether autograd has to see the operation; bad operands are found later."""
    return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None,
    causal: bool,
    q_start: int | torch.Tensor | None,
    mask: torch.Tensor | None,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    k_scale: torch.Tensor | float | None,
    v_scale: torch.Tensor | float | None,
    enable_gqa: bool,
    return_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    q, k, v = operands(_OP, q, k, v)
    lead: torch.Size | None = None
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or not q.size(0) == k.size(0) == v.size(0):
        q, k, v, mask, lead = to_four_dims(q, k, v, mask)
    batch, heads, q_len, d = q.shape
    _, kv_heads, kv_len, kd = k.shape
    if kd != d or v.size(2) != kv_len or v.size(1) != kv_heads or kv_len > checks.MAX_KEYS:
        checks.shapes(_OP, q, k, v)
    if heads != kv_heads:
        checks.heads(_OP, heads, kv_heads, enable_gqa)
    if scale is None:
        scale = 1.0 / math.sqrt(d) if d else 1.0
    if window is not None or softcap is not None or not -math.inf < scale < math.inf:
        checks.options(_OP, window, softcap, scale)
    if mask is not None:
        checks.mask(_OP, mask, q, (batch, heads, q_len, kv_len))
        mask = mask.resolve_neg()
        if mask.dim() < 4:
            mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    logits = None if sinks is None else checks.sink_logits(_OP, sinks, heads, q.device)
    factors: dict[str, torch.Tensor | None] = {}
    if not q.is_cuda:
        checks.no_scales(_OP, k_scale, v_scale)
    elif k_scale is not None or v_scale is not None:
        factors = gpu_scales(_OP, q, k, v, k_scale, v_scale)
    starts: torch.Tensor | None = None
    if isinstance(q_start, torch.Tensor):
        starts = device_integers(_OP, "q_start", q_start, q.device)
        if starts.numel() != batch:
            raise ShapeError(f"{_OP}: {starts.numel()} values of q_start for {batch} sequences")
        q_start = 0
    elif q_start is None:
        if (causal or window is not None) and q_len != kv_len:
            checks.ambiguous_start(_OP, q_len, kv_len)
        q_start = 0

    lse: torch.Tensor | None
    if needs_grad(q, k, v, mask, sinks) and k.dtype is q.dtype:
        out, lse = differentiable(
            q, k, v, mask, sinks, scale, causal, q_start, starts, window, softcap
        )
    else:
        out, lse = dense(
            q, k, v, scale=scale, causal=causal, q_start=q_start, q_starts=starts, mask=mask,
            window=window, softcap=softcap, sinks=logits, lse=return_lse, **factors,
        )  # fmt: skip
    if lead is not None:
        out = out.reshape(*lead, *out.shape[-2:])
        lse = None if lse is None else lse.reshape(*lead, lse.size(-1))
    if not return_lse:
        return out
    assert lse is not None
    return out, lse


def to_four_dims(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Size]:
    """q, k, v and the mask as [B, H, T, D], and the leading shape [..., H] of the result."""
    flat = q.dim() == k.dim() == v.dim() == 2
    if q.dim() < 2 or k.dim() < 2 or v.dim() < 2:
        raise ShapeError(f"{_OP}: q, k and v need at least the dimensions [T, D]")
    q, k, v = (x[None] if x.dim() == 2 else x for x in (q, k, v))
    try:
        lead = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            q.shape[:-3], k.shape[:-3], v.shape[:-3]
        )
    except RuntimeError as error:
        raise ShapeError(
            f"{_OP}: leading dimensions {tuple(q.shape[:-3])}, {tuple(k.shape[:-3])} and "
            f"{tuple(v.shape[:-3])} do not broadcast"
        ) from error
    heads, q_len, kv_len = q.size(-3), q.size(-2), k.size(-2)
    if mask is not None:
        checks.mask(_OP, mask, q, (*lead, heads, q_len, kv_len))
        full = (1,) * (len(lead) + 3 - mask.dim()) + tuple(mask.shape)
        mask = mask.reshape(full).expand(*lead, *full[-3:]).reshape(-1, *full[-3:])
    q, k, v = (x.expand(*lead, *x.shape[-3:]).reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    return q, k, v, mask, torch.Size(() if flat else (*lead, heads))
