"""Group C and F2: prefill, chunks, decode steps and identical prompts."""

from __future__ import annotations

import pytest
import torch

from faults.models import Decoder, built
from faults.properties import FLOATS, Pairs, holds, stock_fails, threads, values

TEXT = torch.randint(0, 211, (3, 41), generator=torch.Generator().manual_seed(5))


def in_pieces(model: torch.nn.Module, tokens: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Logits of all positions, computed piece by piece from the cache."""
    cache, out = None, []
    for piece in tokens.split(sizes, dim=1):
        logits, cache = model(piece, cache)
        out.append(logits)
    return torch.cat(out, 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_c3_cache_or_no_cache(dtype: torch.dtype) -> None:
    model, length = built(Decoder, dtype), TEXT.shape[1]

    def pairs() -> Pairs:
        whole = model.logits(TEXT)
        for cut in range(1, length):
            yield f"cut at {cut}", whole, in_pieces(model, TEXT, [cut, length - cut])
        for size in (1, 2, 5, 16, 17):
            sizes = [size] * (length // size) + [length % size] * (length % size > 0)
            yield f"chunks of {size}", whole, in_pieces(model, TEXT, sizes)
        yield "alone", whole[:1], in_pieces(model, TEXT[:1], [7] + [1] * (length - 7))

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


def test_c3_over_several_leaves() -> None:
    """A context longer than one leaf of 512 keys, cut on, before and after the edge."""
    model = built(Decoder, torch.float32, depth=1, heads=2)
    model.places = torch.nn.Embedding(1200, 64).requires_grad_(False)
    text = torch.randint(0, 211, (1, 1100), generator=torch.Generator().manual_seed(6))

    def pairs() -> Pairs:
        whole = model.logits(text)
        for first in (511, 512, 513, 1023, 1024, 1025):
            logits = in_pieces(model, text, [first, 1, 1, 1100 - first - 2])
            yield f"after {first}", whole, logits

    holds(pairs)


def linear_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A gated linear-attention layer, one position at a time: q, k, v [B, H, T, D]."""
    out = []
    for t in range(q.shape[2]):
        state = state * decay + k[:, :, t, :, None] * v[:, :, t, None, :]
        out.append((q[:, :, t, None, :] @ state)[:, :, 0])
    return torch.stack(out, 2), state


@pytest.mark.parametrize("dtype", FLOATS)
def test_c7_recurrent_state_in_steps(dtype: torch.dtype) -> None:
    """Linear attention whose steps are cut anywhere: outputs and final states are equal."""
    x = values(3, 130, 64, dtype=dtype)
    w = values(192, 64, dtype=dtype, seed=1) / 8
    decay = values(4, 1, 1, dtype=dtype, seed=2).sigmoid()

    def run(x: torch.Tensor, size: int) -> torch.Tensor:
        state, out = x.new_zeros(len(x), 4, 16, 16), []
        for piece in x.split(size, 1):
            qkv = torch.nn.functional.linear(piece, w).view(len(x), -1, 3, 4, 16)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            y, state = linear_attention(q, torch.nn.functional.silu(k), v, decay, state)
            out.append(y.transpose(1, 2).flatten(2))
        return torch.cat([torch.cat(out, 1), state.flatten(1).view(len(x), 16, 64)], 1)

    def pairs() -> Pairs:
        whole = run(x, 130)
        for size in (1, 2, 5, 64):
            yield f"steps of {size}", whole, run(x, size)
        yield "alone", whole[1:2], run(x[1:2], 5)

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_f2_identical_prompts(dtype: torch.dtype) -> None:
    """Copies of a prompt in one batch agree with each other and with the prompt alone, greedily."""
    model = built(Decoder, dtype)

    def generate(tokens: torch.Tensor, steps: int = 12) -> torch.Tensor:
        logits, cache = model(tokens)
        seen = [logits[:, -1]]
        for _ in range(steps):
            logits, cache = model(seen[-1].argmax(-1, keepdim=True), cache)
            seen.append(logits[:, -1])
        return torch.stack(seen, 1)

    def pairs() -> Pairs:
        alone = generate(TEXT[:1, :9])
        for n in (2, 3, 4, 8):
            yield f"{n} copies", alone.expand(n, -1, -1), generate(TEXT[:1, :9].expand(n, -1))
        yield "among others", alone[0], generate(TEXT[[1, 0, 2], :9])[1]
        yield from threads(lambda: generate(TEXT[:, :9]))

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)
