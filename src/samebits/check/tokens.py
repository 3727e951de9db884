"""Models of sequences of tokens: causal language models and encoders, through one protocol each.

The requests are short texts of one length; padding and longer neighbours come in where a test is
about them. Token numbers are prime where they can be, so that a traced tensor's token axis is not
mistaken for another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from samebits.check.compare import Bits
from samebits.check.subject import (
    Call,
    NotApplicable,
    Probe,
    device_of,
    moved,
    repeat_probes,
    rows_of,
    shifted,
    thread_probes,
    to_cpu,
    transposed,
)
from samebits.check.tape import window

POOL = 8


class Encoder(Protocol):
    """Texts to vectors. `embed` takes ids and mask (bool, True = real), both [B, T], to [B, D]."""

    name: str
    module: torch.nn.Module
    vocabulary: int

    def embed(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One vector for each row."""


class Decoder(Protocol):
    """A causal language model with a cache."""

    name: str
    module: torch.nn.Module
    vocabulary: int

    def logits(
        self, ids: torch.Tensor, cache: Any = None, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits [B, T, V] of the tokens `ids` [B, T]; appends their keys and values to `cache`.

        `mask` [B, T] is True at real tokens (None: all are); the cache remembers it. Positions
        count the real tokens of a row.
        """

    def prompts(self) -> list[tuple[str, torch.Tensor]]:
        """Texts to continue, each as it is shown and as ids [T]; may be empty."""

    def end(self, ids: torch.Tensor) -> int:
        """How many of the generated ids [T] count: up to the model's own end of text."""

    def text(self, ids: torch.Tensor) -> str:
        """Ids [T] as text for people."""

    def new_cache(self, batch: int, capacity: int) -> Any:
        """An empty cache for `batch` rows of at most `capacity` tokens."""

    def fork(self, cache: Any) -> Any:
        """An independent copy of a cache."""


@dataclass(frozen=True)
class Sizes:
    """How much is run: batch sizes, tokens of a request, and of the sweep over batch sizes."""

    sweep: tuple[int, ...]
    tokens: int
    sweep_tokens: int
    repeats: int


#: Every batch up to two tiles of 64, then both sides of every edge of a tile.
_EDGES = (
    191,
    192,
    193,
    255,
    256,
    257,
    383,
    384,
    385,
    511,
    512,
    513,
    767,
    768,
    769,
    1023,
    1024,
    1025,
)
WIDE = Sizes((*range(1, 131), *_EDGES, 1100), 601, 5, 200)
SMALL = Sizes((1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 24, 31, 32, 33, 64), 61, 11, 5)
LARGE = Sizes((1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 33), 37, 11, 3)
LARGE_PARAMETERS = 20_000_000


@dataclass(frozen=True)
class Batch:
    """Requests side by side, padded to one length."""

    ids: torch.Tensor
    mask: torch.Tensor
    spans: tuple[tuple[int, int], ...]

    @property
    def padded(self) -> bool:
        """Whether any row is shorter than the batch."""
        return not bool(self.mask.all())


def pack(
    requests: Sequence[torch.Tensor], *, side: str = "right", length: int = 0, pad: int = 0
) -> Batch:
    """Pads requests [T_i] on one side to the longest (or to `length`)."""
    length = max(length, *(len(request) for request in requests))
    ids = torch.full((len(requests), length), pad)
    mask = torch.zeros(len(requests), length, dtype=torch.bool)
    spans = []
    for row, request in enumerate(requests):
        start = length - len(request) if side == "left" else 0
        ids[row, start : start + len(request)] = request
        mask[row, start : start + len(request)] = True
        spans.append((start, start + len(request)))
    return Batch(ids, mask, tuple(spans))


class TokenSubject(ABC):
    """What causal models and encoders have in common.

    Args:
        name, kind, module: as in `samebits.check.subject.Subject`.
        vocabulary: number of tokens.
        requests: texts as ids [T], at least one; the first ones are used, more are drawn.
        sizes: how much to run.
        seed: of the generator of further requests.
    """

    kind = ""

    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        vocabulary: int,
        requests: Sequence[torch.Tensor],
        *,
        sizes: Sizes | None = None,
        seed: int = 0,
    ) -> None:
        self.name, self._vocabulary, self._model = name, vocabulary, module
        self.module: torch.nn.Module | None = module
        self.parameters = sum(p.numel() for p in module.parameters())
        self.device = device_of(module)
        self.sizes = sizes or self._sizes()
        self._generator = torch.Generator().manual_seed(seed)
        self._pool = [self._request(requests, i, self.sizes.tokens) for i in range(POOL)]

    def _sizes(self) -> Sizes:
        if self.parameters > LARGE_PARAMETERS:
            return LARGE
        return WIDE if self.device.type == "cuda" else SMALL

    def _request(self, given: Sequence[torch.Tensor], i: int, length: int) -> torch.Tensor:
        """The i-th request, cut or filled up to `length` tokens."""
        start = given[i][:length] if i < len(given) else torch.empty(0, dtype=torch.long)
        return torch.cat([start, self._random(length - len(start))])

    def request(self, row: int) -> torch.Tensor:
        """The ids [T] of one request."""
        return self._pool[row % POOL]

    def batch(self, count: int) -> Call:
        """The call with `count` requests."""
        return self._call([self.request(row) for row in range(count)])

    def _random(self, length: int) -> torch.Tensor:
        return torch.randint(self._vocabulary, (length,), generator=self._generator)

    def describe(self) -> dict[str, str]:
        """Size and dtype of the model, and what was asked."""
        dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in self._model.parameters()})
        return {
            "parameters": f"{self.parameters:,}",
            "dtype": ", ".join(dtypes),
            "request": f"{self.sizes.tokens} tokens",
        }

    @abstractmethod
    def run(self, batch: Batch) -> list[Bits]:
        """What the model gives for each row of a batch."""

    def _call(self, requests: Sequence[torch.Tensor], **how: Any) -> Call:
        return self._ready(pack(requests, **how))

    def probes(self, test: str) -> Iterator[Probe]:
        """The probes of one test."""
        probes = getattr(self, f"_probes_{test}", None)
        if probes is None:
            raise NotApplicable(f"{self.kind} without a cache")
        yield from probes()

    def _short(self) -> list[torch.Tensor]:
        return [request[: self.sizes.sweep_tokens] for request in self._pool]

    def _probes_repeats(self) -> Iterator[Probe]:
        for count in (1, 5):
            call = self._call(self._pool[:count])
            yield from repeat_probes(call, count, self.sizes.repeats, self.device)

    def _probes_rows(self) -> Iterator[Probe]:
        yield from self._sweep("", lambda requests: self._call(requests))

    def _sweep(self, group: str, call: Callable[[list[torch.Tensor]], Call]) -> Iterator[Probe]:
        """Batches of M requests against each of them alone."""
        short = [request[: self.sizes.sweep_tokens] for request in self._pool]
        alone = [call([request]) for request in short]
        for count in self.sizes.sweep:
            yield Probe(
                f"M = {count}" + (f", {group}" if group else ""),
                call([short[row % POOL] for row in range(count)]),
                tuple((alone[row % POOL], 0) for row in range(count)),
                x=count,
                group=group,
            )

    def _probes_position(self) -> Iterator[Probe]:
        count = 7
        plain = self._call(self._pool[:count])
        others = list(range(1, count))
        for place in range(1, count):
            order = [*others[:place], 0, *others[place:]]
            yield Probe(
                f"place {place} of {count}",
                self._call([self._pool[row] for row in order]),
                rows_of(plain, count),
                x=place,
                places=tuple(order.index(row) for row in range(count)),
            )

    def _probes_neighbours(self) -> Iterator[Probe]:
        count, place = 5, 2
        mine, length = self._pool[0], self.sizes.tokens
        one = torch.full((length,), int(mine[0]))
        kinds = {
            "copies of itself": [mine] * (count - 1),
            "one token over and over": [one] * (count - 1),
            "random tokens": [self._random(length) for _ in range(count - 1)],
            "the same text but for its last token": [
                torch.cat([mine[:-1], (mine[-1:] + 1 + i) % self._vocabulary])
                for i in range(count - 1)
            ],
        }
        ordinary = self._pool[1:count]
        plain = self._call([*ordinary[:place], mine, *ordinary[place:]])
        for label, others in kinds.items():
            call = self._call([*others[:place], mine, *others[place:]])
            yield Probe(f"beside {label}", call, ((plain, place),), places=(place,))

    def _probes_padding(self) -> Iterator[Probe]:
        mine = self._pool[0][: self.sizes.sweep_tokens]
        long = self._pool[1][: self.sizes.sweep_tokens + 13]
        alone = self._call([mine])
        for side in ("left", "right"):
            for extra in (1, 7, 32):
                for pad in (0, self._vocabulary - 1):
                    yield Probe(
                        f"{extra} of token {pad} {side}",
                        self._call([mine], side=side, length=len(mine) + extra, pad=pad),
                        rows_of(alone, 1),
                        x=extra,
                        group=side,
                    )
            yield Probe(
                f"beside longer text, padded {side}",
                self._call([long, mine, long.flip(0)], side=side),
                rows_of(alone, 1),
                group=side,
                places=(1,),
            )

    def _probes_threads(self) -> Iterator[Probe]:
        for count in (1, 5):
            yield from thread_probes(self._call(self._pool[:count]), count, self.device)

    def _probes_layout(self) -> Iterator[Probe]:
        moves = {"one element off alignment": shifted, "column-major": transposed}
        for count in (1, 5):
            batch = pack(self._pool[:count])
            wide = Batch(batch.ids.repeat_interleave(2, 1)[:, ::2], batch.mask, batch.spans)
            plain = self._call(self._pool[:count])
            calls = {
                f"parameters {label}": moved(self._model, plain, move)
                for label, move in moves.items()
            }
            calls["ids every second element"] = self._ready(wide)
            for label, call in calls.items():
                yield Probe(f"M = {count}, {label}", call, rows_of(plain, count))

    def _ready(self, batch: Batch) -> Call:
        return lambda: self.run(batch)


class EncoderSubject(TokenSubject):
    """An encoder: one vector for each text."""

    kind = "encoder"

    def __init__(self, encoder: Encoder, requests: Sequence[torch.Tensor], **how: Any) -> None:
        super().__init__(encoder.name, encoder.module, encoder.vocabulary, requests, **how)
        self.encoder = encoder

    def run(self, batch: Batch) -> list[Bits]:
        """One vector for each row."""
        count, length = batch.ids.shape
        with torch.no_grad(), window(count, length, batch.spans):
            vectors = to_cpu(self.encoder.embed(batch.ids, batch.mask))
        return [(vector,) for vector in vectors]


class DecoderSubject(TokenSubject):
    """A causal language model: logits over the whole vocabulary at every position."""

    kind = "causal language model"

    def __init__(self, decoder: Decoder, requests: Sequence[torch.Tensor], **how: Any) -> None:
        super().__init__(decoder.name, decoder.module, decoder.vocabulary, requests, **how)
        self.decoder = decoder

    def run(self, batch: Batch) -> list[Bits]:
        """Logits of the real tokens of each row, from one prefill without a cache."""
        count, length = batch.ids.shape
        mask = batch.mask if batch.padded else None
        with torch.no_grad(), window(count, length, batch.spans):
            logits = to_cpu(self.decoder.logits(batch.ids, None, mask))
        return [(row[start:stop],) for row, (start, stop) in zip(logits, batch.spans, strict=True)]

    def pieces(
        self,
        requests: Sequence[torch.Tensor],
        cuts: Sequence[int],
        cache: Callable[[], Any] | None = None,
    ) -> Call:
        """The call that feeds requests of one length in pieces of the given sizes.

        It starts from `cache()`, or from an empty cache.
        """
        ids = torch.stack(list(requests))
        make = cache or (lambda: self.decoder.new_cache(*ids.shape))

        def run() -> Sequence[Bits]:
            held = make()
            parts = []
            with torch.no_grad():
                for piece in torch.split(ids, list(cuts), 1):
                    with window(*piece.shape):
                        parts.append(self.decoder.logits(piece, held))
            return [(row,) for row in to_cpu(torch.cat(parts, 1))]

        return run

    def _probes_rows(self) -> Iterator[Probe]:
        yield from self._sweep("prefill", lambda requests: self._call(requests))
        yield from self._sweep("decode", self._prefill_and_decode)

    def _prefill_and_decode(self, requests: list[torch.Tensor]) -> Call:
        prompt = 3
        cuts = [prompt, *([1] * (self.sizes.sweep_tokens - prompt))]
        return self.pieces(requests, cuts)

    def _probes_chunks(self) -> Iterator[Probe]:
        whole = self._call(self._pool[:1])
        length = self.sizes.tokens
        for size in (2, 3, 5, 8, 16, 17, length // 2, length - 1):
            cuts = [size] * (length // size) + ([length % size] if length % size else [])
            yield self._cut(f"pieces of {size}", cuts, whole, size)
        yield self._cut("pieces of 1, 10, 2, rest", [1, 10, 2, length - 13], whole, None)

    def _cut(self, label: str, cuts: list[int], whole: Call, x: int | None) -> Probe:
        return Probe(label, self.pieces(self._pool[:1], cuts), rows_of(whole, 1), x=x)

    def _probes_decode(self) -> Iterator[Probe]:
        whole = self._call(self._pool[:1])
        length = self.sizes.tokens
        for prompt in (1, 16, length - 2):
            cuts = [prompt, *([1] * (length - prompt))]
            yield self._cut(f"prompt of {prompt}, then one by one", cuts, whole, prompt)
        cuts = [16, *([1] * (length - 16))]
        yield Probe(
            "prompt of 16, then one by one, beside 2 others",
            self.pieces(self._pool[:3], cuts),
            rows_of(whole, 1),
        )

    def _probes_prefix(self) -> Iterator[Probe]:
        mine, length = self._pool[0], self.sizes.tokens
        for prefix in (1, 16, length // 2, length - 1):
            cold, rest = self._tail(mine, prefix), [mine[prefix:]]
            for label, used in (("first use", False), ("after another text", True)):
                yield Probe(
                    f"{prefix} tokens kept, {label}",
                    self.pieces(rest, [length - prefix], self._kept(mine[:prefix], used)),
                    rows_of(cold, 1),
                    x=prefix,
                    group=label,
                )

    def _kept(self, prefix: torch.Tensor, used: bool) -> Callable[[], Any]:
        """A copy of a cache of the prefix; with `used` another text has gone on from it before."""

        def cache() -> Any:
            kept = self.decoder.new_cache(1, self.sizes.tokens)
            with torch.no_grad():
                self.decoder.logits(prefix[None], kept)
                if used:
                    self.decoder.logits(
                        self._pool[1][None, : self.sizes.tokens - len(prefix)],
                        self.decoder.fork(kept),
                    )
            return self.decoder.fork(kept)

        return cache

    def _tail(self, request: torch.Tensor, prefix: int) -> Call:
        """The logits behind the prefix, from one prefill of everything."""
        batch = pack([request])
        return self._ready(Batch(batch.ids, batch.mask, ((prefix, len(request)),)))
