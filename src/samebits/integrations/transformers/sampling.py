"""Seeded sampling for ``generate`` and continuous batching.

transformers draws the tokens of a batch from one generator, so that a row's token depends on the
rows before it; the switch refuses that. Here a token is `samebits.ops.sample` of its own row of
scores, its request's seed and its position: the number of tokens, padding aside, before it.
Temperature, top-k and the like are applied by transformers' own processors, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor

from samebits.errors import ShapeError
from samebits.ops import sample


def draw(scores: torch.Tensor, seeds: int | torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One token [R] for each row of processed scores [R, V]."""
    return sample(scores.float(), seeds=seeds, positions=positions).tokens


def signed(seed: int) -> int:
    """A seed of up to 64 bits, as int64."""
    return (seed + 2**63) % 2**64 - 2**63


#: What the seeds of several answers to one prompt are apart: 2^64 over the golden ratio.
APART = 0x9E3779B97F4A7C15


class SeededSampling(LogitsProcessor):  # type: ignore[misc]
    """Draws a token for each row and leaves only that one, for ``argmax`` to find.

    Args:
        seeds: one for each prompt, or one for all.
        padding: [prompts] columns that hold no token; None: none.
        copies: rows of each prompt, one after another (num_return_sequences); the first has the
            prompt's seed, the others seeds of their own.
    """

    def __init__(
        self, seeds: int | Sequence[int], padding: torch.Tensor | None = None, copies: int = 1
    ) -> None:
        self.seeds, self.padding, self.copies = seeds, padding, copies

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows, column = input_ids.shape
        prompts = rows // self.copies
        given = [self.seeds] * prompts if isinstance(self.seeds, int) else list(self.seeds)
        if len(given) != prompts:
            raise ShapeError(f"generate: {len(given)} seeds for {prompts} prompts")
        own = [signed(seed + copy * APART) for seed in given for copy in range(self.copies)]
        seeds = torch.tensor(own, dtype=torch.int64, device=scores.device)
        positions = torch.full((rows,), column, dtype=torch.int64, device=scores.device)
        if self.padding is not None:
            pads = self.padding.to(scores.device)
            positions = positions - pads.repeat_interleave(rows // len(pads))
        tokens = draw(scores, seeds, positions)
        only = torch.full_like(scores, float("-inf"))
        return only.scatter(1, tokens[:, None], 0.0)
