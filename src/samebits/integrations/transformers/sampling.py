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


class SeededSampling(LogitsProcessor):  # type: ignore[misc]
    """Draws a token for each row and leaves only that one, for ``argmax`` to find.

    Args:
        seeds: one for each row, or one for all.
        padding: [B] columns of each row that hold no token; None: none.
    """

    def __init__(self, seeds: int | Sequence[int], padding: torch.Tensor | None = None) -> None:
        self.seeds, self.padding = seeds, padding

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows, column = input_ids.shape
        if isinstance(self.seeds, int):
            seeds: int | torch.Tensor = signed(self.seeds)
        elif len(self.seeds) == rows:
            seeds = torch.tensor(
                [signed(seed) for seed in self.seeds], dtype=torch.int64, device=scores.device
            )
        else:
            raise ShapeError(f"generate: {len(self.seeds)} seeds for {rows} sequences")
        positions = torch.full((rows,), column, dtype=torch.int64, device=scores.device)
        if self.padding is not None:
            positions = positions - self.padding.to(scores.device)
        tokens = draw(scores, seeds, positions)
        only = torch.full_like(scores, float("-inf"))
        return only.scatter(1, tokens[:, None], 0.0)
