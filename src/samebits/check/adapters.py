"""Turns what a user hands over into a subject: a function, a module, a language model, an encoder.

A language model is recognised by what it offers, not by its class: a Hugging Face model by
``config`` and ``forward(input_ids=...)``, the bundled model and its like by
``forward(ids, cache, positions, attention_mask)``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from samebits.check.functions import FunctionSubject
from samebits.check.subject import Subject, device_of
from samebits.check.tokens import DecoderSubject, EncoderSubject
from samebits.errors import SettingError

TINY_PROMPTS = (
    "ROMEO:\n",
    "First Citizen:\nBefore we proceed any further, ",
    "KING RICHARD III:\nNow is the winter ",
    "JULIET:\nO Romeo, ",
    "To be, or not to be, ",
    "HAMLET:\n",
    "The quality of mercy is not ",
    "Friends, Romans, countrymen, ",
)


class TinyDecoder:
    """The bundled model (`samebits.check.tokens.Decoder`)."""

    def __init__(self, model: Any, name: str | None = None) -> None:
        self.module, self.name = model, name or type(model).__name__
        self.vocabulary = int(model.config.vocab)
        self._device = device_of(model)

    def logits(
        self, ids: torch.Tensor, cache: Any = None, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `samebits.check.tokens.Decoder.logits`."""
        mask = None if mask is None else mask.to(self._device)
        logits: torch.Tensor = self.module(ids.to(self._device), cache, attention_mask=mask)
        return logits

    def prompts(self) -> list[tuple[str, torch.Tensor]]:
        """Lines that the model can go on from."""
        return [(prompt, torch.tensor(list(prompt.encode()))) for prompt in TINY_PROMPTS]

    def end(self, ids: torch.Tensor) -> int:
        """Bytes have no end of text."""
        return len(ids)

    def text(self, ids: torch.Tensor) -> str:
        """Bytes as text."""
        return bytes(ids.tolist()).decode("utf-8", "replace")

    def new_cache(self, batch: int, capacity: int) -> Any:
        """An empty cache."""
        from samebits.models.tiny import KVCache

        weight = self.module.embed.weight
        return KVCache(self.module.config, batch, capacity, weight.dtype, weight.device)

    def fork(self, cache: Any) -> Any:
        """An independent copy."""
        return copy.deepcopy(cache)


@dataclass
class HuggingFaceCache:
    """Keys and values, and which of the tokens seen so far are real."""

    past: Any
    mask: torch.Tensor


class HuggingFaceDecoder:
    """A causal language model of transformers (`samebits.check.tokens.Decoder`)."""

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        tokenizer: Any = None,
        prompts: Sequence[tuple[str, torch.Tensor]] = (),
    ) -> None:
        self.module = model
        self.name = name or type(model).__name__
        self.vocabulary = int(model.config.get_text_config().vocab_size)
        self._tokenizer, self._prompts = tokenizer, prompts
        self._device = device_of(model)
        # Renamed in transformers 5.2x; the old name still works there, with a warning.
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    def logits(
        self,
        ids: torch.Tensor,
        cache: HuggingFaceCache | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `samebits.check.tokens.Decoder.logits`."""
        ids = ids.to(self._device)
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.to(self._device)
        if cache is not None:
            real = cache.mask = torch.cat([cache.mask, real], 1)
        padded = not bool(real.all())
        positions = (real.long().cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self.module(
            input_ids=ids,
            attention_mask=real.long() if padded else None,
            position_ids=positions,
            use_cache=cache is not None,
            **{self._cache_name: None if cache is None else cache.past},
        )
        logits: torch.Tensor = output.logits
        return logits

    def prompts(self) -> list[tuple[str, torch.Tensor]]:
        """The given prompts."""
        return list(self._prompts)

    def end(self, ids: torch.Tensor) -> int:
        """Up to the first token that ends a text."""
        ends = getattr(self.module.generation_config, "eos_token_id", None)
        if ends is None:
            return len(ids)
        hits = torch.isin(ids, torch.tensor(ends)).nonzero()
        return int(hits[0]) + 1 if len(hits) else len(ids)

    def text(self, ids: torch.Tensor) -> str:
        """The tokenizer's text, or the numbers where there is no tokenizer."""
        if self._tokenizer is None:
            return " ".join(map(str, ids.tolist()))
        text: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        return text

    def new_cache(self, batch: int, capacity: int) -> HuggingFaceCache:
        """An empty cache (it grows as needed)."""
        from transformers import DynamicCache

        past = DynamicCache(config=self.module.config)
        return HuggingFaceCache(past, torch.ones(batch, 0, dtype=torch.bool, device=self._device))

    def fork(self, cache: HuggingFaceCache) -> HuggingFaceCache:
        """An independent copy."""
        return copy.deepcopy(cache)


class HuggingFaceEncoder:
    """An encoder of transformers with mean pooling (`samebits.check.tokens.Encoder`).

    The vector of a text is the mean of the last hidden states of its own tokens, as
    sentence-transformers computes it, scaled to length one.
    """

    def __init__(self, model: Any, name: str | None = None) -> None:
        self.module = model
        self.name = name or type(model).__name__
        self.vocabulary = int(model.config.vocab_size)
        self._device = device_of(model)

    def embed(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One vector [D] for each row of ids [B, T]; `mask` [B, T] is True at real tokens."""
        ids, mask = ids.to(self._device), mask.to(self._device)
        # Positions count real tokens: without them padding on the left would move the text.
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        hidden = self.module(
            input_ids=ids, attention_mask=mask.long(), position_ids=positions
        ).last_hidden_state
        # A padded place adds +0 at the end of its row's sum, whatever its hidden state holds.
        summed = hidden.masked_fill(~mask[..., None], 0.0).sum(1)
        mean = summed / mask.sum(1, keepdim=True)
        return torch.nn.functional.normalize(mean, dim=-1)


def subject_of(
    target: Any, inputs: Any = None, *, name: str | None = None, seed: int = 0, **how: Any
) -> Subject:
    """The subject that checks `target`.

    Args:
        target: a subject, a decoder or encoder as in `samebits.check.tokens`, a Hugging Face model,
            an ``nn.Module`` or a function of tensors.
        inputs: for language models and encoders: token ids [T] or [B, T], or a list of texts as
            such (optional). Otherwise the positional arguments: a tensor or a sequence.
        name: for the report.
        seed: of generated inputs.
        how: further keywords of the subject (``batched``, ``sweep``, ``sizes``).

    Raises:
        SettingError: the target cannot be called, or needs inputs.
    """
    if hasattr(target, "probes"):
        subject: Subject = target
        return subject
    if _takes(target, "ids", "cache", "attention_mask"):
        target = TinyDecoder(target, name)
    elif _takes(target, "input_ids") and hasattr(target, "config"):
        decoder = getattr(target, "can_generate", lambda: False)()
        target = (HuggingFaceDecoder if decoder else HuggingFaceEncoder)(target, name)
    if hasattr(target, "logits") and hasattr(target, "new_cache"):
        return DecoderSubject(target, _requests(inputs), seed=seed, **how)
    if hasattr(target, "embed") and hasattr(target, "vocabulary"):
        return EncoderSubject(target, _requests(inputs), seed=seed, **how)
    if not callable(target):
        raise SettingError(
            f"{type(target).__name__} cannot be checked: pass a function, an nn.Module, a Hugging "
            "Face model or a subject"
        )
    if inputs is None:
        raise SettingError(
            f"{name or getattr(target, '__qualname__', type(target).__name__)} needs inputs: pass "
            "inputs=(x, ...), where x has one row for each request (on the command line "
            "--inputs module:name, or --shape 8x4096 for random numbers)"
        )
    try:
        arguments = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    except TypeError:
        raise SettingError(
            f"inputs={inputs!r}: pass a tensor, or a sequence of positional arguments"
        ) from None
    return FunctionSubject(target, arguments, name=name, seed=seed, **how)


def _takes(target: Any, *names: str) -> bool:
    """A module whose ``forward`` has parameters of these names."""
    if not isinstance(target, torch.nn.Module):
        return False
    return set(names) <= set(inspect.signature(target.forward).parameters)


def _requests(inputs: Any) -> Sequence[torch.Tensor]:
    if inputs is None:
        return []
    if isinstance(inputs, torch.Tensor):
        return list(inputs.cpu()) if inputs.dim() == 2 else [inputs.cpu()]
    return [torch.as_tensor(request).cpu() for request in inputs]
