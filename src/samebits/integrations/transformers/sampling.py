"""Seeded sampling for ``generate`` and continuous batching.

transformers draws the tokens of a batch from one generator, so that a row's token depends on the
rows before it; the switch refuses that. Here a token is `samebits.ops.sample` of its own row of
scores, its request's seed and its position: the number of tokens, padding aside, before it.
Temperature, top-k and the like are applied by transformers' own processors, row by row.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process

from samebits.errors import SettingError, ShapeError
from samebits.ops import sample


def draw(scores: torch.Tensor, seeds: int | torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One token [R] for each row of processed scores [R, V]."""
    return sample(scores.float(), seeds=seeds, positions=positions).tokens


def signed(seed: int) -> int:
    """A seed of up to 64 bits, as int64."""
    return (seed + 2**63) % 2**64 - 2**63


def checked(seed: Any) -> int:
    """A seed as somebody gave it.

    Raises:
        SettingError: it is no whole number of 64 bits, signed or not.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = None
    if number is None or isinstance(seed, bool) or not -(2**63) <= number < 2**64:
        raise SettingError(f"seed={seed!r} is no whole number of 64 bits")
    return number


def checked_all(seeds: Any) -> int | list[int]:
    """One seed for all prompts, or one for each, as somebody gave them: numbers, a list, a tensor.

    Raises:
        SettingError: as `checked`.
    """
    several = isinstance(seeds, (list, tuple)) or getattr(seeds, "ndim", None)
    return [checked(x) for x in seeds] if several else checked(seeds)


#: What the seeds of several answers to one prompt are apart: 2^64 over the golden ratio.
APART = 0x9E3779B97F4A7C15


class SeededSampling(LogitsProcessor):  # type: ignore[misc]
    """Draws a token for each row and leaves only that one, for ``argmax`` to find.

    Args:
        seeds: one for each prompt, or one for all.
        before: [prompts] tokens of each prompt that are no column of the ids, embedded ones or a
            cache's; less those columns that hold no token. None: every column is a token.
        copies: rows of each prompt, one after another (num_return_sequences); the first has the
            prompt's seed, the others seeds of their own.
    """

    def __init__(
        self, seeds: int | Sequence[int], before: torch.Tensor | None = None, copies: int = 1
    ) -> None:
        self.seeds, self.before, self.copies = seeds, before, copies

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows, column = input_ids.shape
        prompts = rows // self.copies
        given = [self.seeds] * prompts if isinstance(self.seeds, int) else list(self.seeds)
        if len(given) != prompts:
            raise ShapeError(f"generate: {len(given)} seeds for {prompts} prompts")
        own = [signed(seed + copy * APART) for seed in given for copy in range(self.copies)]
        seeds = torch.tensor(own, dtype=torch.int64, device=scores.device)
        positions = torch.full((rows,), column, dtype=torch.int64, device=scores.device)
        if self.before is not None:
            before = self.before.to(scores.device)
            positions = positions + before.repeat_interleave(rows // len(before))
        tokens = draw(scores, seeds, positions)
        only = torch.full_like(scores, float("-inf"))
        return only.scatter(1, tokens[:, None], 0.0)


#: Processors of transformers that look at the tokens of a row, or count them.
_READERS = (
    logits_process.RepetitionPenaltyLogitsProcessor,
    logits_process.NoRepeatNGramLogitsProcessor,
    logits_process.SequenceBiasLogitsProcessor,  # bad words, too
    logits_process.MinLengthLogitsProcessor,
)


class Unpadded(LogitsProcessor):  # type: ignore[misc]
    """A processor that is shown each row without the padding in front of it.

    Else a penalty for repetition would fall on the token that pads, which often is the one that
    ends a text, in the rows of a batch that are short.

    Args:
        padding: [prompts] columns in front that hold no token.
    """

    def __init__(self, processor: Any, padding: torch.Tensor) -> None:
        self.processor, self.padding = processor, padding

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        pads = self.padding.repeat_interleave(len(input_ids) // len(self.padding))
        result = torch.empty_like(scores)
        for pad in sorted(set(pads.tolist())):
            rows = (pads == pad).nonzero()[:, 0].to(scores.device)
            result[rows] = self.processor(input_ids[rows, pad:], scores[rows])
        return result


def unpadded(processors: Any, seen: torch.Tensor | None, columns: int | None = None) -> Any:
    """A ``LogitsProcessorList`` for which padding does not matter.

    Args:
        seen: the attention mask [prompts, T]; None: there is no padding.
        columns: the last of T that are ids, behind embedded tokens or a cache; None: all.
    """
    if seen is not None and columns is not None:
        seen = seen[:, seen.shape[1] - columns :] if 0 < columns < seen.shape[1] else seen
        seen = seen if columns else None
    if seen is None or bool(seen.all()):
        return processors
    padding = (seen.long().cumsum(1) == 0).sum(1).cpu()
    return LogitsProcessorList(Unpadded(p, padding) if _reads_padding(p) else p for p in processors)


def _reads_padding(processor: Any) -> bool:
    """Newer releases tell the penalty how many columns of each row to leave out."""
    told = isinstance(getattr(processor, "prompt_ignore_length", None), torch.Tensor)
    return isinstance(processor, _READERS) and not told


def without_padding(processors: Any, prompts: torch.Tensor, seen: torch.Tensor) -> None:
    """Shows processors that look at the prompt, or an encoder's input, only its tokens.

    Args:
        processors: a ``LogitsProcessorList``; they are changed.
        prompts: [prompts, T] ids as those processors were given them.
        seen: their attention mask, its rows repeated if a prompt has several answers.
    """
    real = seen[:: max(1, len(seen) // len(prompts))].to(torch.bool)
    if real.shape != prompts.shape or bool(real.all()):
        return
    for p in processors:
        if isinstance(p, logits_process.EncoderRepetitionPenaltyLogitsProcessor):
            first = prompts.gather(1, real.long().argmax(1, keepdim=True))
            p.encoder_input_ids = torch.where(real, prompts, first)  # once or often is the same
        elif isinstance(p, logits_process.EncoderNoRepeatNGramLogitsProcessor):
            rows = (ids[kept][None] for ids, kept in zip(prompts, real, strict=True))
            own = [type(p)(p.ngram_size, row).generated_ngrams[0] for row in rows]
            p.generated_ngrams = own
