"""Sampling on the Triton engine. Operands are validated by the caller."""

from __future__ import annotations

import torch

from samebits.engines.triton import sampling as engine


def draw(
    logits: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    logprobs: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Tokens [R] and their logarithmic probabilities [R] or None."""
    if not logits.shape[0]:
        empty = logits.new_empty(0, dtype=torch.float32) if logprobs else None
        return seeds.new_empty(0), empty
    filtered = logprobs or not top_k is top_p is min_p is None
    cut = engine.cut_rows(logits, temperature, top_k, top_p, min_p) if filtered else None
    return engine.draw(logits, temperature, top_k, seeds, positions, cut, logprobs)
