"""Scaled dot product attention.

The composite ``scaled_dot_product_attention`` is taken whole, before torch chooses a kernel by the
shapes of the batch; so is the kernel it would choose, which compiled graphs call directly. The
fused modules (``_native_multi_head_attention``, ``_transformer_encoder_layer_fwd``) are refused by
the table; the switch turns their fast path off, and then they are made of covered operations.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.mode.fallback import refuse, stock
from samebits.mode.registry import aten
from samebits.ops.attention import attention
from samebits.ops.attention.autograd import attention_backward

_DROPOUT = "dropout draws from one generator for the whole batch"
_NO_DROPOUT = "Use dropout_p=0 (model.eval())."

_STOCK_FLASH = stock("_scaled_dot_product_flash_attention_for_cpu")
_STOCK_FLASH_BACKWARD = stock("_scaled_dot_product_flash_attention_for_cpu_backward")


@aten("scaled_dot_product_attention")
@aten("scaled_dot_product_attention", key="AutogradCPU")
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p > 0.0 or query.dtype not in DTYPE_CODE:
        op = "scaled_dot_product_attention"
        if dropout_p > 0.0:
            refuse(op, _DROPOUT, remedy=_NO_DROPOUT)
        else:
            refuse(op, f"no contract covers {query.dtype}")
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale,
            enable_gqa=enable_gqa,
        )[0]  # fmt: skip
    if _plain(query, key, value):
        return attention(
            query, key, value, scale=scale, causal=is_causal, q_start=0, mask=attn_mask,
            enable_gqa=enable_gqa,
        )  # fmt: skip
    return _traced(query, key, value, attn_mask, is_causal, scale, enable_gqa)[0]


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the tensors hold values here and now: not traced, wrapped or watched by a mode."""
    return (
        type(q) in _PLAIN
        and type(k) in _PLAIN
        and type(v) in _PLAIN
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
    )


# ---- an operation of its own, for graphs that are traced and run later ---------------------------


@torch.library.custom_op("samebits::attention", mutates_args=(), device_types="cpu")
def _traced(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    out = attention(
        query, key, value, scale=scale, causal=causal, q_start=0, mask=mask,
        enable_gqa=enable_gqa, return_lse=True,
    )  # fmt: skip
    assert isinstance(out, tuple)
    return out


@_traced.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    lead = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        query.shape[:-3], key.shape[:-3], value.shape[:-3]
    )
    rows = (*lead, *query.shape[-3:-1])
    return query.new_empty((*rows, value.size(-1))), query.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("samebits::attention_backward", mutates_args=(), device_types="cpu")
def _traced_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
    mask_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    if mask is not None and mask_grad:
        mask = mask.detach().requires_grad_()
        leaves.append(mask)
    with torch.enable_grad():
        out = attention(*leaves[:3], scale=scale, causal=causal, q_start=0, mask=mask)
    found = torch.autograd.grad(out, leaves, grad)
    q, k, v = (g.contiguous() for g in found[:3])
    return q, k, v, found[3].contiguous() if mask_grad else q.new_empty(0)


@_traced_backward.register_fake
def _(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
    mask_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    of_mask = mask.new_empty(mask.shape) if mask_grad and mask is not None else query.new_empty(0)
    q, k, v = (x.new_empty(x.shape) for x in (query, key, value))
    return q, k, v, of_mask


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    query, key, value, mask, ctx.causal, ctx.scale, _ = inputs
    ctx.save_for_backward(query, key, value, mask)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    query, key, value, mask = ctx.saved_tensors
    wanted = ctx.needs_input_grad[3]
    q, k, v, m = _traced_backward(grad, query, key, value, mask, ctx.causal, ctx.scale, wanted)
    return q, k, v, m if wanted else None, None, None, None


_traced.register_autograd(_differentiate, setup_context=_setup_context)


# ---- the kernel that torch would choose ----------------------------------------------------------


def _scale(scale: float | None, query: torch.Tensor) -> float:
    return 1.0 / math.sqrt(query.size(-1)) if scale is None else scale


@aten("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p > 0.0 or query.dtype not in DTYPE_CODE:
        return _STOCK_FLASH.uncovered(
            _DROPOUT if dropout_p > 0.0 else f"no contract covers {query.dtype}",
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale,
        )  # fmt: skip
    return attention(
        query, key, value, scale=scale, causal=is_causal, q_start=0, mask=attn_mask,
        return_lse=True,
    )  # fmt: skip


@aten("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p > 0.0 or query.dtype not in DTYPE_CODE:
        return _STOCK_FLASH_BACKWARD.uncovered(
            _DROPOUT if dropout_p > 0.0 else f"no contract covers {query.dtype}",
            grad_out, query, key, value, out, logsumexp, dropout_p, is_causal,
            attn_mask=attn_mask, scale=scale,
        )  # fmt: skip
    return attention_backward(
        grad_out, query, key, value, out, logsumexp, mask=attn_mask,
        scale=_scale(scale, query), causal=is_causal,
    )[:3]  # fmt: skip
