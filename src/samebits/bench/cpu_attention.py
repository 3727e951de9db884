"""Attention through ``F.scaled_dot_product_attention``: stock against the switch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from samebits.bench.timing import Row, compare

#: (batch, query heads, KV heads, head dim)
_DECODE = ((1, 9, 3, 64), (8, 9, 3, 64), (1, 8, 8, 64), (1, 32, 8, 128), (8, 32, 8, 128))
_PREFILL = ((1, 9, 3, 64), (4, 8, 8, 64), (1, 16, 4, 128))
_KV_LENGTHS = (128, 512, 4096)
_PROMPTS = (128, 512, 2048)
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
#: Elements of K that one case may have; larger ones would only measure memory once more.
_MOST = 2**24
#: Scores that one prefill may have.
_MOST_SCORES = 9 * 2048**2


def rows() -> Iterator[Row]:
    """Decode steps over caches of several lengths, then causal prefills."""
    for dtype, name in _NAMES.items():
        for batch, heads, kv_heads, d in _DECODE:
            for kv_len in _KV_LENGTHS:
                if batch * kv_heads * kv_len * d > _MOST:
                    continue
                label = f"{name} decode B={batch} H={heads}/{kv_heads} D={d} L={kv_len}"
                yield _row(label, dtype, (batch, heads, kv_heads, d), 1, kv_len, 1.0)
        for batch, heads, kv_heads, d in _PREFILL:
            for length in _PROMPTS:
                if batch * heads * length**2 > _MOST_SCORES:
                    continue
                label = f"{name} prefill B={batch} H={heads}/{kv_heads} D={d} T={length}"
                yield _row(label, dtype, (batch, heads, kv_heads, d), length, length, 0.8)


def _row(
    label: str,
    dtype: torch.dtype,
    shape: tuple[int, int, int, int],
    q_len: int,
    kv_len: int,
    target: float,
) -> Row:
    batch, heads, kv_heads, d = shape
    g = torch.Generator().manual_seed(0)
    q = torch.randn(batch, heads, q_len, d, generator=g).to(dtype)
    k = torch.randn(batch, kv_heads, kv_len, d, generator=g).to(dtype)
    v = torch.randn(batch, kv_heads, kv_len, d, generator=g).to(dtype)

    def call() -> torch.Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=q_len > 1, enable_gqa=heads != kv_heads
        )

    with torch.inference_mode():
        return compare("attention", label, call, target=target)
