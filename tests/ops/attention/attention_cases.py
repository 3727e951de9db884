"""Inputs for the attention tests, and the contract evaluated over a whole call."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from samebits.contract import numerics
from samebits.ops.attention import reference

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def qkv(
    seed: int,
    batch: int,
    heads: int,
    kv_heads: int,
    q_len: int,
    kv_len: int,
    d: int = 16,
    dv: int | None = None,
    dtype: torch.dtype = torch.float32,
    spread: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random q, k, v; `spread` > 1 makes scores differ by many powers of two."""
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, q_len, d, generator=g) * spread
    k = torch.randn(batch, kv_heads, kv_len, d, generator=g) * spread
    v = torch.randn(batch, kv_heads, kv_len, dv or d, generator=g)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def relayout(x: torch.Tensor, kind: int) -> torch.Tensor:
    """The same values with other strides, offset and alignment; kind 0 keeps x."""
    if kind == 1:  # [B, T, H, D] in memory
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == 2:  # a slice of something larger, odd offset
        big = torch.full((*x.shape[:-1], x.size(-1) + 3), float("nan"), dtype=x.dtype)
        big[..., 1:-2] = x
        return big[..., 1:-2]
    if kind == 3:  # last dimension not contiguous
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    return x


def expected(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    q_start: int = 0,
    mask: torch.Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`reference.attention_rows` for every batch entry and head."""
    batch, heads, q_len, d = q.shape
    kv_len, group = k.size(2), heads // k.size(1)
    by_position = reference.visible_keys(
        q_len, kv_len, causal=causal, q_start=q_start, window=window
    )
    out = np.zeros((batch, heads, q_len, v.size(3)), np.float32)
    lse = np.zeros((batch, heads, q_len), np.float32)
    for b in range(batch):
        for h in range(heads):
            seen, bias = by_position, None
            if mask is not None:
                m = mask.expand(batch, heads, q_len, kv_len)[b, h]
                if mask.dtype is torch.bool:
                    seen = seen & m.numpy()
                else:
                    seen = seen & ~(m <= torch.finfo(mask.dtype).min).numpy()
                    bias = m.float().numpy()
            out[b, h], lse[b, h] = reference.attention_rows(
                q[b, h].float().numpy(),
                k[b, h // group].float().numpy(),
                v[b, h // group].float().numpy(),
                seen,
                scale=d**-0.5 if scale is None else scale,
                dtype=DTYPES[q.dtype],
                bias=bias,
                softcap=softcap,
                sink=None if sinks is None else float(sinks[h]),
            )
    return _store(out, q.dtype), torch.from_numpy(lse)


def _store(x: numerics.F32, dtype: torch.dtype) -> torch.Tensor:
    """fp32 values as a tensor of `dtype`, NaN canonical (torch's own conversion leaves it open)."""
    if dtype is torch.float32:
        return torch.from_numpy(numerics.canonical(x))
    narrow = numerics.f32_to_bf16 if dtype is torch.bfloat16 else numerics.f32_to_fp16
    return torch.from_numpy(narrow(x).view(np.int16)).view(dtype)


def stock(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
