"""What the guard costs a decode step on a CPU, on a machine that may have other work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from samebits.guard import control
from samebits.mode import deterministic
from samebits.models.hub import EXTRA, MissingPackageError

#: After a change of the setting come so many steps; the last one is timed.
_STEPS = 2
#: Changes in one request.
_CHANGES = 24
_PROMPT = 64
#: A rate at which nothing is sampled: what remains is what calls cost to be counted.
_NEVER = "sample:1e-9"


@dataclass(frozen=True)
class Cost:
    """One line, in shares of a step without the guard.

    Attributes:
        setting: of the guard.
        cache: which KV cache.
        seconds: of a step without the guard.
        calls: what it costs that calls are counted, paths followed and caches summed.
        samples: what the sampled calls cost.
    """

    setting: str
    cache: str
    seconds: float
    calls: float
    samples: float


def costs(rounds: int = 400) -> Iterator[Cost]:
    """Times steps of two layers (hidden 1,024, bf16, one token) on one thread.

    The setting changes every two steps, of which the second is timed, by the thread's processor
    time. Each is compared with the step without the guard that is nearest to it, and the median of
    `rounds` comparisons counts: other processes slow both. A share of 0.01 is sampled too rarely
    for that; so it counts a hundredth of what it costs more that every call is.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with deterministic(guard="off"), torch.inference_mode():
            for cache, begin in _caches():
                for setting in ("path", "sample:0.01", "path,sample:0.01"):
                    paths = "path," if setting.startswith("path,") else ""
                    always = [f"{paths}sample:1"] if "sample" in setting else []
                    some = paths + _NEVER if always else setting
                    off, counted, *sampled = _seconds(begin, ["off", some, *always], rounds)
                    calls = _share(off, counted)
                    samples = [0.01 * _share(counted, each) for each in sampled]
                    yield Cost(setting, cache, median(off), calls, sum(samples))
    finally:
        control.apply("off")
        torch.set_num_threads(before)


def _seconds(
    begin: Callable[[], Callable[[], object]], settings: list[str], rounds: int
) -> list[list[float]]:
    """Seconds of a step under each setting, round by round."""
    times: list[list[float]] = [[] for _ in settings]
    for number in range(rounds):
        if number % (_CHANGES // len(settings)) == 0:
            step = begin()
        for i in range(len(settings)):
            at = (i + number) % len(settings)
            control.apply(settings[at])
            for _ in range(_STEPS):
                start = time.thread_time()
                step()
                seconds = time.thread_time() - start
            times[at].append(seconds)
    control.apply("off")
    return times


def _share(a: list[float], b: list[float]) -> float:
    """How much longer b's steps take than a's."""
    return median(y / x - 1 for x, y in zip(a, b, strict=True))


def _caches() -> Iterator[tuple[str, Callable[[], Callable[[], object]]]]:
    """Names of caches, and what begins a request: it gives a function that makes one step."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise MissingPackageError(f"transformers is not installed. Run: {EXTRA}") from error

    from samebits.integrations.transformers import KVCache, enable

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=2, num_attention_heads=16,
        num_key_value_heads=8, vocab_size=4096, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = enable(transformers.LlamaForCausalLM(config).eval().bfloat16())
    planned = KVCache.for_model(model, batch=1, length=_PROMPT + _STEPS * _CHANGES)
    prompt = torch.randint(1, config.vocab_size, (1, _PROMPT))

    def begin(fresh: Callable[[], Any]) -> Callable[[], object]:
        cache = fresh()
        model(input_ids=prompt, past_key_values=cache)
        return lambda: model(input_ids=prompt[:, :1], past_key_values=cache)

    def again() -> Any:
        planned.reset()
        return planned

    yield "DynamicCache", lambda: begin(transformers.DynamicCache)
    yield "KVCache", lambda: begin(again)
