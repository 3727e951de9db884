"""Receipts of what transformers generates: one for each row of `generate`, and for each request of
continuous batching.

The tokens, options and seeds are transformers'; checksums and logarithms come from hooks of
`samebits.guard.receipts.sums` around the model's forward passes.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from samebits import bits
from samebits.errors import UncoveredError
from samebits.guard.receipts import Receipt, Recorder, active
from samebits.guard.receipts.identity import identity_of
from samebits.guard.receipts.operands import Sampler
from samebits.guard.receipts.record import address, encode
from samebits.guard.receipts.sums import Listener, Rows, Running, row_sums
from samebits.integrations.transformers.cache import cache_of
from samebits.integrations.transformers.sampling import APART, signed
from samebits.ops import token_logprob

#: Options of a generation config that decide tokens.
OPTIONS = (
    "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff",
    "eta_cutoff", "repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size",
    "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id",
    "forced_eos_token_id", "sequence_bias", "num_beams", "length_penalty", "eos_token_id",
    "max_new_tokens", "max_length", "min_new_tokens", "num_return_sequences",
)  # fmt: skip
#: Which requests are audited, and where: nobody can foresee it.
draw = random.SystemRandom()
_config: ContextVar[Any] = ContextVar("config", default=None)
_listeners: WeakKeyDictionary[Any, dict[str, Listener]] = WeakKeyDictionary()


def listener_of(model: Any, level: str) -> Listener | None:
    """The listener of a model at a level of `samebits.receipts`."""
    if level == "none" or model.config.is_encoder_decoder:
        return None
    found = _listeners.setdefault(model, {})
    if level not in found:
        found[level] = Listener(model, level, model.get_output_embeddings())
    return found[level]


def note_config(config: Any) -> None:
    """The generation config that the running `generate` has settled on."""
    _config.set(config)


def options_of(config: Any) -> dict[str, Any]:
    """What decides tokens, as plain values."""
    found = {name: getattr(config, name, None) for name in OPTIONS}
    if getattr(config, "_samebits_seeds", None) is not None:
        found["do_sample"] = True  # `hooks` has taken the draw over
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return value if isinstance(value, (bool, int, float, str, list, dict)) else str(value)


class Watch:
    """What one call of `generate` computes, column by column of its batch.

    Args:
        model: a causal language model.
        mask: [B, columns] bool, the prompt's real tokens.
        level: of the recorder.
        audit: share of rows whose operands are kept.
    """

    def __init__(self, model: Any, mask: torch.Tensor, level: str, audit: float = 0.0) -> None:
        self.model, self.mask = model, mask
        self._real = np.cumsum(mask.numpy(), 1)  # tokens up to and with each column of the prompt
        self.listener = listener_of(model, level)
        places = len(self.listener.places) if self.listener else 1
        self.rows = [Rows(places) for _ in range(len(mask))]
        self.logprobs: list[dict[int, int]] = [{} for _ in range(len(mask))]
        self.sampler = Sampler(model, draw) if audit else None
        for row in range(len(mask) if self.sampler else 0):
            if self.sampler is not None and draw.random() < audit:
                self.sampler.add(row)
        self._held: tuple[int, torch.Tensor, torch.Tensor] | None = None
        self._start = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the model in the block."""
        with ExitStack() as stack:
            for hook in (
                self.model.register_forward_pre_hook(self._before, with_kwargs=True),
                self.model.register_forward_hook(self._after, with_kwargs=True),
            ):
                stack.callback(hook.remove)
            for listener in (self.listener, self.sampler):
                if listener is not None:
                    stack.enter_context(listener.listening())
            yield

    def _before(self, _model: Any, args: Any, kwargs: Any) -> None:
        cache = cache_of(kwargs)
        ids = _ids(args, kwargs)
        self._start = 0 if cache is None else int(cache.get_seq_length())
        # Without a cache all columns come again; with one, those behind the first may be a draft.
        known = ids[:, : None if cache is None else 1]
        self.settle(self._start, known)
        if self.listener is not None:
            self.listener.begin()
        if self.sampler is not None:
            width = ids.shape[1]
            self.sampler.begin(ids.numel(), lambda row: [
                (row * width + at.start, at.stop - at.start, start)
                for start, at in self._runs(row, self._start, width)
            ])  # fmt: skip

    def _after(self, _model: Any, args: Any, kwargs: Any, output: Any) -> None:
        if self.sampler is not None:
            self.sampler.end()
        ids, logits = _ids(args, kwargs), output.logits.detach()
        first = self._start + ids.shape[1] - logits.shape[1]
        prompt = self.mask.shape[1]
        if first < prompt - 1:  # no token was drawn from the logits before
            logits = logits[:, prompt - 1 - first :]
            first = prompt - 1
        if logits.shape[1]:
            self._held = first, ids[:, ids.shape[1] - logits.shape[1] :], logits.clone()
        if self.listener is None:
            return
        sums = self.listener.take(ids.numel()).reshape(*ids.shape, -1)
        heads = row_sums(logits).reshape(logits.shape[:2]).cpu().numpy()
        for row, rows in enumerate(self.rows):
            for start, at in self._runs(row, self._start, ids.shape[1]):
                rows.add(start, sums[row, at])
            for step in range(logits.shape[1]):
                rows.add_logits(self.position(row, first + step), int(heads[row, step]))

    def settle(self, start: int, ids: torch.Tensor) -> None:
        """Logarithms of the tokens that were drawn from the last forward's logits, up to those of
        `ids` [B, n], which stand in the columns from `start` on: of a draft only what was kept.
        """
        if self._held is None:
            return
        first, before, logits = self._held
        end = start + ids.shape[1] - 1
        count = min(end - first, logits.shape[1])
        if count < 1:
            return
        self._held = None
        columns = range(first + 1, first + 1 + count)
        drawn = [ids[:, c - start] if c >= start else before[:, c - first] for c in columns]
        tokens = torch.stack(drawn, 1)
        rows = logits[:, :count].float().flatten(0, 1)
        flat = token_logprob(rows, tokens.flatten(), dtype=torch.float32)
        for row, of_row in enumerate(bits.view(flat).reshape(tokens.shape).tolist()):
            self.logprobs[row].update(zip(columns, (x & 0xFFFFFFFF for x in of_row), strict=True))

    def position(self, row: int, column: int) -> int:
        """The position of a column's token in its own sequence."""
        behind = column + 1 - self.mask.shape[1]
        return int(self._real[row, min(column, self.mask.shape[1] - 1)]) - 1 + max(0, behind)

    def _runs(self, row: int, start: int, count: int) -> Iterator[tuple[int, slice]]:
        """Consecutive real tokens among `count` columns from `start`: position of the first, and
        where they are.
        """
        prompt = self.mask.shape[1]
        real = np.ones(count, np.int8)
        known = max(0, min(prompt, start + count) - start)
        real[:known] = self.mask[row, start : start + known].numpy()
        edges = np.flatnonzero(np.diff(np.concatenate([[0], real, [0]])))
        for a, b in edges.reshape(-1, 2).tolist():
            yield self.position(row, start + a), slice(a, b)


def _ids(args: Any, kwargs: Any) -> torch.Tensor:
    """[B, T] token ids of a forward pass."""
    ids = kwargs.get("input_ids", args[0] if args else None)
    if not isinstance(ids, torch.Tensor):
        raise UncoveredError(
            "generate", "receipts name a prompt by its token ids, and it was given as embeddings",
            remedy="Give input_ids, or close the recorder.",
        )  # fmt: skip
    return ids


def generate(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """``model.generate(...)``, with a receipt for each row before it returns."""
    recorder = active()
    given = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
    if recorder is None or model.config.is_encoder_decoder:
        return original(model, *args, **kwargs)
    ids = _ids((given,), {})
    mask = kwargs.get("attention_mask")
    copies = _copies(model, args, kwargs)
    shape = (ids.shape[0] * copies, ids.shape[1])
    real = torch.ones(shape, dtype=torch.bool)
    if mask is not None:
        real = mask.detach().cpu().bool().repeat_interleave(copies, 0)
    beams = _beams(model, args, kwargs)
    watch = Watch(model, real, "none" if beams else recorder.sums, 0 if beams else recorder.audit)
    token = _config.set(None)
    try:
        with nullcontext() if beams else watch.watching():
            result = original(model, *args, **kwargs)
        config = _config.get()
    finally:
        _config.reset(token)
    sequences = result if isinstance(result, torch.Tensor) else result.sequences
    write(recorder, watch, sequences.detach().cpu(), config, beams=beams)
    recorder.flush()
    return result


def write(
    recorder: Recorder, watch: Watch, sequences: torch.Tensor, config: Any, *, beams: bool
) -> list[Receipt]:
    """Hands over a receipt for each row [B, columns] of finished sequences."""
    prompt = watch.mask.shape[1]
    if sequences.shape[1] > prompt and not beams:
        last = sequences[:, -1:].to(watch.model.device)
        watch.settle(sequences.shape[1] - 1, last)
    identity, objects = described(watch.model, watch.listener)
    name, options, seeds = f"gen-{uuid.uuid4().hex}", options_of(config), _seeds(config, sequences)
    found = []
    for row, sequence in enumerate(sequences.tolist()):
        given = [t for t, real in zip(sequence, watch.mask[row].tolist(), strict=False) if real]
        output, finish = _answer(sequence[prompt:], config)
        known = {
            len(given) + column - prompt: value for column, value in watch.logprobs[row].items()
        }
        running = Running(watch.rows[row] if watch.listener else None, {} if beams else known)
        running.keep(watch.sampler, row)
        receipt = running.receipt(
            request=f"{name}/{row}", identity=identity, input=given, output=output,
            sampling=options, seed=seeds[row], finish=finish,
        )  # fmt: skip
        recorder.add(receipt, objects | running.audit)
        found.append(receipt)
    return found


def described(model: Any, listener: Listener | None) -> tuple[str, dict[str, bytes]]:
    """The name of a model's identity, and the objects that its receipts need."""
    places = listener.places if listener is not None else ()
    identity, objects = identity_of(model, engine="transformers", places=places)
    return address(encode(identity)), objects


def _answer(tokens: list[int], config: Any) -> tuple[list[int], str]:
    """What a row answered: up to its first end token; behind it stands padding."""
    ends = getattr(config, "eos_token_id", None)
    ends = [ends] if isinstance(ends, int) else list(ends or ())
    for i, token in enumerate(tokens):
        if token in ends:
            return tokens[: i + 1], "stop"
    return tokens, "length"


def _seeds(config: Any, sequences: torch.Tensor) -> list[int | None]:
    """The seed of each row, as `sampling.SeededSampling` gives them out."""
    seeds = getattr(config, "_samebits_seeds", None)
    rows = len(sequences)
    if seeds is None:
        return [None] * rows
    copies = config.num_return_sequences or 1
    given = [seeds] * (rows // copies) if isinstance(seeds, int) else list(seeds)
    return [signed(seed + copy * APART) for seed in given for copy in range(copies)]


def _setting(model: Any, args: Sequence[Any], kwargs: Any, name: str) -> int:
    config = args[1] if len(args) > 1 else kwargs.get("generation_config")
    for source in (kwargs.get(name), getattr(config, name, None)):
        if source is not None:
            return int(source)
    return int(getattr(model.generation_config, name, None) or 1)


def _copies(model: Any, args: Sequence[Any], kwargs: Any) -> int:
    return _setting(model, args, kwargs, "num_return_sequences")


def _beams(model: Any, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether rows change places while they grow, so that only their tokens can be recorded."""
    return _setting(model, args, kwargs, "num_beams") > 1
