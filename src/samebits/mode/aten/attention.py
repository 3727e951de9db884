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

from samebits.engines import family
from samebits.engines.cpu import DTYPE_CODE
from samebits.mode.fallback import refuse, stock
from samebits.mode.registry import DENSE, DENSE_AUTOGRAD, aten
from samebits.ops.attention import attention, checks, to_four_dims
from samebits.ops.attention.autograd import attention_backward
from samebits.ops.attention.padding import without_padding

_DROPOUT = "dropout draws from one generator for the whole batch"
_NO_DROPOUT = "Use dropout_p=0 (model.eval())."
_GPU_DTYPES = "Use bfloat16 or float16, or compute on the CPU"

_STOCK_FLASH = stock("_scaled_dot_product_flash_attention_for_cpu")
_STOCK_FLASH_BACKWARD = stock("_scaled_dot_product_flash_attention_for_cpu_backward")


@aten("scaled_dot_product_attention", key=(*DENSE, *DENSE_AUTOGRAD))
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
    wide = query.is_cuda and query.dtype is torch.float32 and not family.portable()
    narrow = query.dtype in DTYPE_CODE and not wide
    if dropout_p > 0.0 or not narrow:
        op = "scaled_dot_product_attention"
        if dropout_p > 0.0:
            refuse(op, _DROPOUT, remedy=_NO_DROPOUT)
        elif query.is_cuda:
            refuse(op, f"no contract covers {query.dtype} on a GPU", remedy=_GPU_DTYPES)
        else:
            refuse(op, f"no contract covers {query.dtype}")
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale,
            enable_gqa=enable_gqa,
        )[0]  # fmt: skip
    absolute = query.is_cuda and not family.portable()  # leaves of the portable contract count keys
    if attn_mask is not None and absolute and query.dim() == key.dim() == value.dim() == 4:
        attn_mask = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape))
        key, value, attn_mask = without_padding(key, value, attn_mask)
    return attention(
        query, key, value, scale=scale, causal=is_causal, q_start=0, mask=attn_mask,
        enable_gqa=enable_gqa,
    )  # fmt: skip


def whole(
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
    """The composite as one call of the kernel below it, for the transforms of ``torch.func``.

    torch itself would split other than 4-D operands into products and a softmax: other bits.
    """
    if query.is_cuda:
        refuse(
            "scaled_dot_product_attention",
            "torch.func has no batching rule for the kernel of a GPU",
            remedy="Call it outside vmap and grad of torch.func",
        )
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale,
            enable_gqa=enable_gqa,
        )[0]  # fmt: skip
    lead: torch.Size | None = None
    if query.dim() != 4 or not query.size(0) == key.size(0) == value.size(0):
        query, key, value, attn_mask, lead = to_four_dims(query, key, value, attn_mask)
    if query.size(1) != key.size(1):
        checks.heads("attention", query.size(1), key.size(1), enable_gqa)
    out = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return out if lead is None else out.reshape(*lead, *out.shape[-2:])


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
