"""The backward pass of dense attention, made of covered operations in fp32.

P is recomputed from the saved logsumexp (Dao et al., FlashAttention, 2022, appendix B.4). All
products and sums go through samebits' own contracts, so gradients are as reproducible as results:
dQ of a row depends on that row and the keys it sees; dK and dV of a sequence on that sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samebits.ops.attention.dispatch import dense
from samebits.ops.matmul import matmul
from samebits.ops.pointwise import exp, tanh
from samebits.ops.reduce import sum as row_sum


def needs_grad(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd has to record an operation on `tensors`."""
    if not torch.is_grad_enabled():
        return False
    return any(t is not None and t.requires_grad for t in tensors)


class Attention(torch.autograd.Function):
    """Dense attention with gradients for q, k, v, an additive mask and sinks."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        sinks: torch.Tensor | None,
        scale: float,
        causal: bool,
        q_start: int,
        q_starts: torch.Tensor | None,
        window: int | None,
        softcap: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = None if sinks is None else sinks.to(torch.float32).resolve_neg().contiguous()
        out, lse = dense(
            q, k, v, scale=scale, causal=causal, q_start=q_start, q_starts=q_starts, mask=mask,
            window=window, softcap=softcap, sinks=logits, lse=True,
        )  # fmt: skip
        assert lse is not None
        ctx.save_for_backward(q, k, v, mask, sinks, out, lse)
        ctx.scale, ctx.causal, ctx.window, ctx.softcap = scale, causal, window, softcap
        ctx.starts = q_start if q_starts is None else q_starts
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, mask, sinks, out, lse = ctx.saved_tensors
        found = attention_backward(
            grads[0], q, k, v, out, lse, mask=mask, sinks=sinks, scale=ctx.scale,
            causal=ctx.causal, starts=ctx.starts, window=ctx.window, softcap=ctx.softcap,
            mask_grad=ctx.needs_input_grad[3], sinks_grad=ctx.needs_input_grad[4],
        )  # fmt: skip
        return (*found, None, None, None, None, None, None)


#: `Attention.apply` with its type: the arguments of `forward` but the context.
differentiable: Callable[..., tuple[torch.Tensor, torch.Tensor]] = Attention.apply

Gradients = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, "torch.Tensor | None", "torch.Tensor | None"
]


def attention_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    scale: float,
    causal: bool,
    starts: int | torch.Tensor = 0,
    sinks: torch.Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    mask_grad: bool = False,
    sinks_grad: bool = False,
) -> Gradients:
    """Gradients of dense [B, H, T, D] attention for q, k, v, mask and sinks.

    Args:
        grad: gradient of the result [B, Hq, T, Dv].
        out, lse: the result and its logsumexp [B, Hq, T], as the engine gave them.
        mask_grad, sinks_grad: whether these are wanted; None is returned otherwise.
    """
    batch, heads, q_len, _ = q.shape
    kv_heads, kv_len = k.size(1), k.size(2)
    grouped = (batch, kv_heads, heads // kv_heads * q_len)

    def rows(x: torch.Tensor) -> torch.Tensor:  # the rows of a KV head, one after the other
        return x.to(torch.float32).reshape(*grouped, x.size(-1))

    def per_head(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(batch, heads, q_len, x.size(-1))

    seen = _seen(mask, (batch, heads, q_len, kv_len), causal, starts, window, q.device)
    used = seen.reshape(*grouped, kv_len).any(2)[..., None]
    keys = torch.where(used, k.to(torch.float32), 0.0)  # masked keys may hold NaN
    values = torch.where(used, v.to(torch.float32), 0.0)
    q32, g32 = rows(q), rows(grad)

    z = per_head(matmul(q32, keys.transpose(-1, -2))) * scale
    capped: torch.Tensor | None = None
    if softcap is not None:
        capped = tanh(z / softcap)
        z = capped * softcap
    if mask is not None and mask.dtype is not torch.bool:
        z = z + mask.to(torch.float32)
    p = torch.where(seen, exp(z - lse[..., None]), 0.0)
    delta = row_sum(grad.to(torch.float32) * out.to(torch.float32), -1, True)
    dp = per_head(matmul(g32, values.transpose(-1, -2)))
    ds = torch.where(seen, p * (dp - delta), 0.0)

    dmask = dsinks = None
    if mask is not None and mask_grad:
        dmask = _sum_to(ds, mask.shape).to(mask.dtype)
    if sinks is not None and sinks_grad:
        share = exp(sinks.to(torch.float32)[:, None, None] - lse[..., None])
        dsinks = _sum_to(-(share * delta), (1, heads, 1, 1)).reshape(heads).to(sinks.dtype)
    if capped is not None:
        ds = ds * (1.0 - capped * capped)
    ds = (ds * scale).reshape(*grouped, kv_len)
    p = p.reshape(*grouped, kv_len)
    dq = per_head(matmul(ds, keys)).to(q.dtype)
    dk = matmul(ds.transpose(-1, -2), q32).to(k.dtype)
    dv = matmul(p.transpose(-1, -2), g32).to(v.dtype)
    return dq, dk, dv, dmask, dsinks


def _seen(
    mask: torch.Tensor | None,
    shape: tuple[int, int, int, int],
    causal: bool,
    starts: int | torch.Tensor,
    window: int | None,
    device: torch.device,
) -> torch.Tensor:
    """Which keys each row sees: bool, `shape` = [B, H, T, S]."""
    row = torch.arange(shape[2], device=device)[:, None]
    row = row + (starts[:, None, None, None] if isinstance(starts, torch.Tensor) else starts)
    key = torch.arange(shape[3], device=device)
    seen = torch.ones(shape, dtype=torch.bool, device=device)
    if causal:
        seen = seen & (key <= row)
    if window is not None:
        seen = seen & ((row - key).abs() < window)
    if mask is not None:
        floor = torch.finfo(mask.dtype).min if mask.dtype is not torch.bool else 0
        seen = seen & (mask if mask.dtype is torch.bool else ~(mask <= floor))
    return seen


def _sum_to(x: torch.Tensor, shape: tuple[int, ...] | torch.Size) -> torch.Tensor:
    """`x` summed over the dimensions that `shape` broadcasts."""
    dims = [i for i, n in enumerate(shape) if n == 1 and x.size(i) != 1]
    return row_sum(x, dims, True) if dims else x
