"""One decoder layer of Qwen3-8B in bf16: decode steps at a context of 2048 keys, and a prefill.

Contenders, all as CUDA graphs: the layer written with torch's functions on stock torch, the same
code with the switch on, and the layer written with samebits' fused operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from samebits import ops
from samebits.bench.gpu import OURS, Line, line
from samebits.bench.gpu_timing import race
from samebits.mode import deterministic, stock

WIDTH, HEADS, KV_HEADS, D, HIDDEN = 4096, 32, 8, 128, 12288
QUERY, KEY = HEADS * D, KV_HEADS * D
EPS = 1e-6
CONTEXT = 2048
BATCHES = (1, 8, 64, 256)
PREFILL = 8192
STOCK, SWITCHED = "torch", "torch code, switch on"

Tensor = torch.Tensor


@dataclass(frozen=True)
class Layer:
    """The weights of the layer."""

    input_norm: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    out: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Step:
    """What a call works on: `x` [B, T, C] and a cache of keys and values [B, G, S, D].

    T tokens are written to the places of the cache from `start` on; `causal` is whether they see
    each other in order (a prefill from an empty cache).
    """

    x: Tensor
    cos: Tensor  # [T, D]
    sin: Tensor
    keys: Tensor
    values: Tensor
    start: int
    causal: bool


def with_torch(layer: Layer, step: Step) -> Tensor:
    """The layer in torch's own functions."""
    batch, tokens, _ = step.x.shape
    qkv = F.linear(F.rms_norm(step.x, (WIDTH,), layer.input_norm, EPS), layer.qkv)
    q, k, v = (part.view(batch, tokens, -1, D) for part in torch.split(qkv, [QUERY, KEY, KEY], -1))
    q = _rotate(F.rms_norm(q, (D,), layer.q_norm, EPS), step.cos, step.sin)
    k = _rotate(F.rms_norm(k, (D,), layer.k_norm, EPS), step.cos, step.sin)
    _store(step, k, v)
    y = F.scaled_dot_product_attention(
        q.transpose(1, 2), step.keys, step.values, is_causal=step.causal, enable_gqa=True
    )
    x = step.x + F.linear(y.transpose(1, 2).reshape(batch, tokens, QUERY), layer.out)
    gate, up = F.linear(F.rms_norm(x, (WIDTH,), layer.post_norm, EPS), layer.gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, layer.down)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [B, T, heads, D], pairs (i, i + D/2)."""
    a, b = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-b, a), dim=-1) * sin[:, None]


def _store(step: Step, k: Tensor, v: Tensor) -> None:
    stop = step.start + k.shape[1]
    step.keys[:, :, step.start : stop] = k.transpose(1, 2)
    step.values[:, :, step.start : stop] = v.transpose(1, 2)


def with_ops(layer: Layer, step: Step) -> Tensor:
    """The layer in samebits' operations, norms and activations fused."""
    batch, tokens, _ = step.x.shape
    normed = ops.rms_norm(step.x, (WIDTH,), layer.input_norm, EPS)
    qkv = ops.linear(normed, layer.qkv)
    q, k, v = (part.view(batch, tokens, -1, D) for part in torch.split(qkv, [QUERY, KEY, KEY], -1))
    cos, sin = step.cos[:, None], step.sin[:, None]
    q = ops.rotary(ops.rms_norm(q, (D,), layer.q_norm, EPS), cos, sin)
    k = ops.rotary(ops.rms_norm(k, (D,), layer.k_norm, EPS), cos, sin)
    _store(step, k, v)
    y: Any = ops.attention(
        q.transpose(1, 2), step.keys, step.values, causal=step.causal, q_start=0, enable_gqa=True
    )
    attended = ops.linear(y.transpose(1, 2).reshape(batch, tokens, QUERY), layer.out)
    normed, x = ops.rms_norm(attended, (WIDTH,), layer.post_norm, EPS, residual=step.x)
    gate, up = ops.linear(normed, layer.gate_up).chunk(2, -1)
    out: Tensor = x + ops.linear(ops.silu_mul(gate, up), layer.down)
    return out


def lines(quick: bool) -> Iterator[Line]:
    """Decode at several batch sizes, then a prefill."""
    layer = _layer()
    for batch in BATCHES[::3] if quick else BATCHES:
        yield _line(layer, f"decode B={batch} at {CONTEXT}", batch, 1, CONTEXT)
    yield _line(layer, f"prefill {PREFILL}", 1, PREFILL, PREFILL)


def _layer() -> Layer:
    def random(*shape: int) -> Tensor:
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * scale

    return Layer(
        random(WIDTH), random(QUERY + 2 * KEY, WIDTH), random(D), random(D), random(WIDTH, QUERY),
        random(WIDTH), random(2 * HIDDEN, WIDTH), random(WIDTH, HIDDEN),
    )  # fmt: skip


def _line(layer: Layer, case: str, batch: int, tokens: int, keys: int) -> Line:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    step = Step(
        random(batch, tokens, WIDTH), random(tokens, D), random(tokens, D),
        random(batch, KV_HEADS, keys, D), random(batch, KV_HEADS, keys, D),
        keys - tokens, tokens > 1,
    )  # fmt: skip
    with torch.inference_mode():
        result = race(
            {
                STOCK: lambda _: with_torch(layer, step),
                SWITCHED: lambda _: with_torch(layer, step),
                OURS: lambda _: with_ops(layer, step),
            },
            states={STOCK: stock, SWITCHED: deterministic, OURS: stock},
            rounds=5,
        )
    weights = layer.qkv.numel() + layer.out.numel() + layer.gate_up.numel() + layer.down.numel()
    rows, seen = batch * tokens, (keys + 1) / 2 if tokens > 1 else keys
    return line(
        "layer",
        "prefill" if tokens > 1 else "decode",
        case,
        result,
        against=(STOCK,),
        flops=rows * (2.0 * weights + 4.0 * QUERY * seen),
        size=2.0 * (weights + 2 * rows * WIDTH + 2 * batch * KV_HEADS * keys * D),
        target=1.0,
        x=batch if tokens == 1 else None,
    )
