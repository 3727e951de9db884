"""Importance ratios between an inference engine and a trainer: exactly 1, or noise?

The bundled model samples continuations in one batch, token by token from a KV cache, as an engine
does, and records each token's log-probability. Then a "trainer" with the same weights computes the
log-probabilities of the same tokens: without a cache, with gradients, in other micro-batches. Their
ratio p_trainer / p_engine should be 1 as long as nobody has trained.

    python examples/importance_ratios.py [--picture ratios.png]
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

import samebits as sb
from samebits.models import tiny
from samebits.models.tiny import TinyLM

PROMPTS = (
    b"ROMEO:\n", b"First Citizen:\nBefore we proceed any further, ", b"JULIET:\nO Romeo, ",
    b"To be, or not to be, ", b"HAMLET:\n", b"The quality of mercy is not ", b"KING RICHARD III:\n",
    b"Friends, Romans, countrymen, ",
)  # fmt: skip
Logprobs = Callable[[TinyLM, Tensor, Tensor], Tensor]


def rollout(model: TinyLM, new: int, stock: bool) -> tuple[list[Tensor], list[Tensor]]:
    """The engine: all prompts in one batch. Returns token ids and logarithms, for each prompt."""
    longest = max(map(len, PROMPTS))
    ids = torch.tensor([[tiny.PAD] * (longest - len(p)) + list(p) for p in PROMPTS])
    mask = torch.tensor([[False] * (longest - len(p)) + [True] * len(p) for p in PROMPTS])
    lengths, seeds = mask.sum(1), torch.arange(len(PROMPTS))
    cache = tiny.KVCache(model.config, len(PROMPTS), longest + new, model.embed.weight.dtype)
    tokens, logprobs = [], []
    with torch.no_grad():
        logits = model(ids, cache, attention_mask=mask)[:, -1]
        for step in range(new):
            drawn = sb.ops.sample(logits, seeds=seeds, positions=lengths + step).tokens
            tokens.append(drawn)
            if stock:
                rows = logits.float().log_softmax(-1)
                logprobs.append(rows.gather(1, drawn[:, None])[:, 0])
            else:
                logprobs.append(sb.ops.token_logprob(logits, drawn, dtype=torch.float32))
            logits = model(drawn[:, None], cache)[:, -1]
    drawn, old = torch.stack(tokens, 1), torch.stack(logprobs, 1)
    texts = [torch.cat([torch.tensor(list(p)), row]) for p, row in zip(PROMPTS, drawn, strict=True)]
    return texts, list(old)


def stock_logprobs(model: TinyLM, ids: Tensor, mask: Tensor) -> Tensor:
    """What a trainer without samebits does."""
    logits = model(ids, attention_mask=mask)[:, :-1]
    return logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


def our_logprobs(model: TinyLM, ids: Tensor, mask: Tensor) -> Tensor:
    return sb.ops.token_logprobs(model, ids, mask=mask)


def train(model: TinyLM, texts: list[Tensor], new: int, size: int, logprobs: Logprobs) -> Tensor:
    """The trainer: micro-batches of `size`, padded on the right. Logarithms of the new tokens."""
    found = []
    for start in range(0, len(texts), size):
        rows = texts[start : start + size]
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), tiny.PAD)
        mask = torch.zeros(len(rows), longest, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = row, True
        values = logprobs(model, ids, mask)
        assert values.requires_grad
        found += [values[i, len(row) - 1 - new : len(row) - 1] for i, row in enumerate(rows)]
    return torch.stack(found)


def ratios(stock: bool, new: int = 120, size: int = 3) -> Tensor:
    """p_trainer / p_engine of every sampled token, [prompts, new]."""
    model = tiny.load().to(torch.bfloat16).requires_grad_(True)
    switch: AbstractContextManager[None] = contextlib.nullcontext() if stock else sb.deterministic()
    with switch:
        texts, old = rollout(model, new, stock)
        now = train(model, texts, new, size, stock_logprobs if stock else our_logprobs)
        return (now - torch.stack(old)).exp().detach()


def draw(stock: Tensor, ours: Tensor, path: str) -> None:
    """Ratios by position, stock above, samebits below."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.4), sharey=True, layout="constrained")
    for panel, values, name in zip(
        panels, (stock, ours), ("stock PyTorch", "samebits"), strict=True
    ):
        exact = int((values == 1).sum())
        for row in values:
            panel.plot(range(1, len(row) + 1), row, ".", markersize=3.5, color="#2f5d8a", alpha=0.6)
        panel.set_title(f"{name}: {exact} of {values.numel()} ratios are exactly 1", fontsize=10)
        panel.set_xlabel("token of the answer")
        panel.grid(alpha=0.25)
    panels[0].set_ylabel("p(trainer) / p(engine), same weights")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--picture", help="write a picture to this file (needs matplotlib)")
    arguments = parser.parse_args()
    found = {}
    for name in ("stock", "samebits"):
        found[name] = values = ratios(name == "stock")
        print(
            f"{name:>8}: {int((values == 1).sum())} of {values.numel()} ratios are exactly 1; they "
            f"lie in [{values.min():.6f}, {values.max():.6f}]"
        )
    if arguments.picture:
        draw(found["stock"], found["samebits"], arguments.picture)


if __name__ == "__main__":
    main()
