"""What the switch costs, and what it is for: times, and text generated alone and in company."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from samebits import bits
from samebits.check.functions import FunctionSubject
from samebits.check.result import Speed, Text
from samebits.check.subject import Subject
from samebits.check.timing import Switch, measure
from samebits.check.tokens import (
    LARGE_PARAMETERS,
    Decoder,
    DecoderSubject,
    EncoderSubject,
    pack,
)
from samebits.mode import stock


def speed_of(subject: Subject, switch: Switch) -> Iterator[Speed]:
    """Times of the subject at several batch sizes, stock and switched in turns."""
    if isinstance(subject, FunctionSubject):
        for count in (1, 4, 16, 64):
            yield _speed(f"M = {count}", "call", subject.batch(count), 1, switch, 0.5, 7)
        return
    if not isinstance(subject, (DecoderSubject, EncoderSubject)):
        return
    large = subject.parameters > LARGE_PARAMETERS
    seconds, rounds = (0.0, 3) if large else (0.6, 5)
    tokens = subject.sizes.tokens
    for count in (1, 8):
        call = subject.batch(count)
        if isinstance(subject, EncoderSubject):
            yield _speed(f"batch {count}", "text", call, count, switch, seconds, rounds)
            continue
        yield _speed(
            f"prefill, batch {count}", "token", call, count * tokens, switch, seconds, rounds
        )
        steps = 8 if large else 24
        run = _generation(subject, count, steps)
        yield _speed(
            f"generate, batch {count}", "token", run, count * steps, switch, seconds, rounds
        )


def _speed(
    label: str,
    unit: str,
    call: Callable[[], object],
    units: int,
    switch: Switch,
    seconds: float,
    rounds: int,
) -> Speed:
    before, after = measure(call, switch=switch, seconds=seconds, rounds=rounds)
    return Speed(label, unit, before / units, after / units)


def _generation(subject: DecoderSubject, count: int, steps: int) -> Callable[[], object]:
    prompts = [subject.request(row)[:8] for row in range(count)]
    return lambda: generate(subject.decoder, prompts, steps)


def generate(
    decoder: Decoder, prompts: Sequence[torch.Tensor], steps: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Greedy continuations, from one prefill (padded on the left) and a cache.

    Returns:
        Tokens [B, steps], and the first prompt's logits [V] at each step.
    """
    batch = pack(prompts, side="left")
    count, length = batch.ids.shape
    cache: Any = decoder.new_cache(count, length + steps)
    tokens = torch.empty(count, steps, dtype=torch.long)
    seen = []
    with torch.no_grad():
        logits = decoder.logits(batch.ids, cache, batch.mask if batch.padded else None)
        for step in range(steps):
            last = logits[:, -1]
            seen.append(last[0])
            tokens[:, step] = last.argmax(-1)
            if step + 1 < steps:
                logits = decoder.logits(tokens[:, step : step + 1], cache)
    return tokens, seen


def texts_of(subject: Subject, switch: Switch) -> Iterator[Text]:
    """Each prompt continued alone and with all others beside it, on both sides."""
    if not isinstance(subject, DecoderSubject):
        return
    decoder = subject.decoder
    prompts = decoder.prompts()
    if not prompts:
        some = [subject.request(row)[:12] for row in range(8)]
        prompts = [(decoder.text(ids), ids) for ids in some]
    large = subject.parameters > LARGE_PARAMETERS
    steps, shown = (48, 3) if large else (120, 4)
    for side, manager in (("stock", stock), ("switched", switch)):
        with manager():
            for chosen in range(min(shown, len(prompts))):
                yield _text(decoder, side, prompts, chosen, steps)


def _text(
    decoder: Decoder,
    side: str,
    prompts: Sequence[tuple[str, torch.Tensor]],
    chosen: int,
    most: int,
) -> Text:
    label, mine = prompts[chosen]
    others = [ids for i, (_, ids) in enumerate(prompts) if i != chosen]
    alone, alone_logits = generate(decoder, [mine], most)
    together, together_logits = generate(decoder, [mine, *others], most)
    ends = decoder.end(alone[0]), decoder.end(together[0])
    steps = max(ends)
    parted = [
        step
        for step, (a, b) in enumerate(
            zip(alone_logits[:steps], together_logits[:steps], strict=True)
        )
        if not bits.equal(a, b)
    ]
    tokens = (alone[0, :steps] != together[0, :steps]).nonzero().flatten().tolist()
    return Text(
        side=side,
        prompt=label,
        company=len(others),
        alone=decoder.text(alone[0, : ends[0]]),
        together=decoder.text(together[0, : ends[1]]),
        steps=steps,
        differing_steps=len(parted),
        first_logits=parted[0] if parted else None,
        first_token=tokens[0] if tokens else None,
    )
