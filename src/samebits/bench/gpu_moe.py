"""Mixture-of-experts layers: router, gated experts, combination.

Contender: torch's grouped product (``torch._grouped_mm``) over tokens sorted by expert, the way of
transformers' own fast path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from samebits import ops
from samebits.bench.gpu import OURS, Line, line
from samebits.bench.gpu_timing import race
from samebits.mode import stock

GROUPED = "torch grouped_mm"
Tensor = torch.Tensor


@dataclass(frozen=True)
class Shape:
    """Sizes of a layer: model width, inner width of an expert, experts, experts a token."""

    name: str
    width: int
    inner: int
    experts: int
    k: int


SHAPES = (
    Shape("Qwen3-30B-A3B", 2048, 768, 128, 8),
    Shape("Mixtral-8x7B", 4096, 14336, 8, 2),
)
TOKENS = (1, 16, 64, 512, 4096)


@dataclass(frozen=True)
class Experts:
    """The weights of a layer."""

    router: Tensor  # [E, H]
    gate_up: Tensor  # [E, 2 I, H]
    down: Tensor  # [E, H, I]


def with_torch(x: Tensor, w: Experts, k: int) -> Tensor:
    """The layer in torch's functions; `x` [T, H]."""
    scores, ids = F.linear(x, w.router).float().softmax(-1).topk(k)
    scores = scores / scores.sum(-1, keepdim=True)
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    counts = torch.zeros(len(w.router), dtype=torch.int32, device=x.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    ends = counts.cumsum(0, dtype=torch.int32)
    hidden = torch._grouped_mm(x[order // k], w.gate_up.mT, ends)
    gate, up = hidden.chunk(2, -1)
    each = torch._grouped_mm(F.silu(gate) * up, w.down.mT, ends)
    weighted = each * scores.flatten()[order, None].to(x.dtype)
    out: Tensor = torch.zeros_like(x).index_add_(0, order // k, weighted)
    return out


def with_ops(x: Tensor, w: Experts, k: int) -> Tensor:
    """The layer in samebits' operations."""
    scores, ids = ops.router_topk(ops.linear(x, w.router), k)
    return ops.moe(x, w.gate_up, w.down, ids, scores)


def lines(quick: bool) -> Iterator[Line]:
    """One line a layer and number of tokens."""
    for shape in SHAPES[:1] if quick else SHAPES:
        experts = _experts(shape)
        for tokens in TOKENS[1::2] if quick else TOKENS:
            yield _line(shape, experts, tokens)


def _experts(shape: Shape) -> Experts:
    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, device="cuda", dtype=torch.bfloat16) / math.sqrt(sizes[-1])

    return Experts(
        random(shape.experts, shape.width),
        random(shape.experts, 2 * shape.inner, shape.width),
        random(shape.experts, shape.width, shape.inner),
    )


def _line(shape: Shape, experts: Experts, tokens: int) -> Line:
    # Other tokens choose other experts: the rotation is over them. All weights exceed the L2.
    inputs = [
        torch.randn(tokens, shape.width, device="cuda", dtype=torch.bfloat16) for _ in range(8)
    ]
    with stock(), torch.inference_mode():
        result = race(
            {
                OURS: lambda i: with_ops(inputs[i], experts, shape.k),
                GROUPED: lambda i: with_torch(inputs[i], experts, shape.k),
            },
            sets=len(inputs),
            rounds=5,
        )
    one = 3 * shape.width * shape.inner
    # Random tokens meet on experts: so many different ones are read on average.
    picked = shape.experts * (1 - (1 - shape.k / shape.experts) ** tokens)
    return line(
        "moe",
        shape.name,
        f"{shape.name} T={tokens}",
        result,
        against=(GROUPED,),
        flops=2.0 * tokens * shape.k * one,
        size=2.0 * (picked * one + 2 * tokens * shape.width),
        target=1.0,
        x=tokens,
    )
