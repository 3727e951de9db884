"""Attention with 32 query heads, 8 key/value heads and 128 channels, as in Llama-3-8B and Qwen3-8B.

Contenders: PyTorch's FlashAttention-2 and cuDNN.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from samebits import ops
from samebits.bench.gpu import OURS, Line, line
from samebits.bench.gpu_timing import race, sets_for
from samebits.engines.replay import Work
from samebits.mode import stock

HEADS, KV_HEADS, D = 32, 8, 128
#: (batch, keys) of one decode step.
DECODE = ((1, 2048), (1, 32768), (1, 131072), (8, 8192), (32, 4096), (128, 2048))
#: (batch, tokens) of a causal prefill.
PREFILL = ((1, 2048), (8, 2048), (1, 8192), (2, 8192))
CUDNN, FLASH = "cuDNN", "FlashAttention-2"
_BACKENDS = {CUDNN: SDPBackend.CUDNN_ATTENTION, FLASH: SDPBackend.FLASH_ATTENTION}


def lines(quick: bool) -> Iterator[Line]:
    """Decode steps, then prefills."""
    for batch, keys in DECODE[:5:2] if quick else DECODE:
        yield _line("decode", batch, 1, keys, 0.95)
    for batch, tokens in PREFILL[1::2] if quick else PREFILL:
        yield _line("prefill", batch, tokens, tokens, 0.90)


def _line(kind: str, batch: int, queries: int, keys: int, target: float) -> Line:
    size = 2 * batch * D * (2 * HEADS * queries + 2 * KV_HEADS * keys)
    sets = sets_for(size)

    def random(heads: int, length: int) -> list[torch.Tensor]:
        shape = (batch, heads, length, D)
        return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]

    q, k, v = random(HEADS, queries), random(KV_HEADS, keys), random(KV_HEADS, keys)
    causal = queries > 1

    def theirs(backend: SDPBackend) -> Work:
        def work(i: int) -> object:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    q[i], k[i], v[i], is_causal=causal, enable_gqa=True
                )

        return work

    def ours(i: int) -> object:
        return ops.attention(q[i], k[i], v[i], causal=causal, q_start=0, enable_gqa=True)

    pairs = queries * (keys + 1) / 2 if causal else queries * keys
    with stock(), torch.inference_mode():
        result = race(
            {OURS: ours, **{name: theirs(backend) for name, backend in _BACKENDS.items()}},
            sets=sets,
            rounds=5,
        )
    return line(
        "attention",
        kind,
        f"{kind} B={batch} T={keys}" if causal else f"{kind} B={batch} L={keys}",
        result,
        against=(CUDNN,),
        flops=4.0 * batch * HEADS * D * pairs,
        size=size,
        target=target,
        x=keys,
    )
