"""Receipts of vLLM: the scheduler says which requests are finished and what their tokens are, the
model runner beside it what was computed for them. Both are in one process, so there is one rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from samebits import bits, ops
from samebits.guard.receipts import Receipt, Recorder, active, receipts
from samebits.guard.receipts.identity import Described, identity_of
from samebits.guard.receipts.record import address, encode
from samebits.guard.receipts.sums import Listener, Rows, Running, row_sums
from samebits.integrations.vllm.patches import Patches
from samebits.integrations.vllm.sampler import GREEDY_BELOW, seed_of

#: Attributes of vLLM's ``SamplingParams`` that decide tokens.
PARAMETERS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens",
    "bad_words", "logit_bias", "allowed_token_ids", "structured_outputs",
)  # fmt: skip


class Steps:
    """What a model runner computes, by request.

    Args:
        options: of the engine that decide bits (`identity_of`).

    Attributes:
        kept: what was known of finished requests; None: it is dropped.
    """

    kept: list[tuple[Receipt, Running]] | None = None

    def __init__(
        self, recorder: Recorder, engine_seed: int, options: tuple[tuple[str, str], ...]
    ) -> None:
        self.recorder, self.engine_seed, self.options = recorder, engine_seed, options
        self.running: dict[str, Running] = {}
        self.listener: Listener | None = None
        self.scheduled: dict[str, int] | None = None
        self.model: Any = None
        self._described: tuple[str, dict[str, bytes]] | None = None

    def attach(self, model: Any) -> None:
        """Listens to a model's layers for good."""
        if model is self.model:
            return
        self.model = model
        if self.recorder.sums != "none":
            self.listener = Listener(model, self.recorder.sums, getattr(model, "lm_head", None))
            self.listener.listen()

    def of(self, name: str) -> Running:
        """What is known of a request."""
        if name not in self.running:
            places = len(self.listener.places) if self.listener else 0
            self.running[name] = Running(Rows(places) if self.listener else None)
        return self.running[name]

    def spans(self, batch: Any) -> Iterator[tuple[Running, int, int]]:
        """Each request of the step, in the order of its rows, its first position and tokens."""
        assert self.scheduled is not None
        for index, name in enumerate(batch.req_ids):
            start = int(batch.num_computed_tokens_cpu[index])
            yield self.of(name), start, self.scheduled[name]

    def finished(self, request: Any) -> None:
        """Writes a finished request's receipt; one that never ran leaves none."""
        if self.model is None or request.prompt_token_ids is None:
            return
        if self._described is None:
            identity, objects = self.identity()
            self._described = address(encode(identity)), objects
        identity_name, objects = self._described
        running = self.running.pop(request.request_id, None) or Running(None)
        params = request.sampling_params
        options = {name: _plain(getattr(params, name, None)) for name in PARAMETERS}
        if request.lora_request is not None:
            options["lora"] = request.lora_request.lora_name
        greedy = (params.temperature or 0.0) < GREEDY_BELOW
        seed = params.seed
        if seed is None:
            seed = seed_of(request.request_id, self.engine_seed)
        receipt = running.receipt(
            request=request.request_id, identity=identity_name,
            input=list(request.prompt_token_ids), output=list(request.output_token_ids),
            sampling={k: v for k, v in options.items() if v is not None},
            seed=None if greedy else seed, finish=str(request.get_finished_reason()),
        )  # fmt: skip
        if self.kept is not None:
            self.kept.append((receipt, running))
        self.recorder.add(receipt, objects)

    def identity(self) -> Described:
        """What computes: the model that is attached, with this engine's options."""
        places = self.listener.places if self.listener else ()
        return identity_of(self.model, engine="vllm", places=places, options=self.options)


_steps: Steps | None = None


def install(
    patches: Patches,
    wanted: str | dict[str, Any],
    engine_seed: int,
    options: tuple[tuple[str, str], ...] = (),
) -> None:
    """Opens the recorder, unless this process has one, and listens to vLLM.

    Args:
        wanted: a path, or ``{"path": ..., ...}`` with other arguments of `samebits.receipts`.
        options: see `Steps`.

    Raises:
        ReceiptError, SettingError: as `samebits.receipts`.
    """
    global _steps
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    table = {"path": wanted} if isinstance(wanted, str) else dict(wanted)
    _steps = Steps(active() or receipts(**table), engine_seed, options)
    for owner, name, around in (
        (GPUModelRunner, "execute_model", _execute),
        (GPUModelRunner, "_model_forward", _forward),
        (GPUModelRunner, "_sample", _sample),
        (Scheduler, "_free_request", _free),
    ):
        patches.set(owner, name, _around(getattr(owner, name), around))


def current() -> Steps:
    """What this process' engine computes."""
    assert _steps is not None
    return _steps


def _around(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(current(), original, self, *args, **kwargs)

    return method


def _execute(
    steps: Steps, original: Any, runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any
) -> Any:
    steps.attach(runner.get_model())
    steps.scheduled = dict(scheduler_output.num_scheduled_tokens)
    return original(runner, scheduler_output, *args, **kwargs)


def _forward(steps: Steps, original: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
    if steps.listener is None or not steps.scheduled:  # a dry run
        return original(runner, *args, **kwargs)
    steps.listener.begin()
    hidden = original(runner, *args, **kwargs)
    first = hidden[0] if isinstance(hidden, tuple) else hidden
    table = steps.listener.take(first.shape[0])
    row = 0
    for running, start, count in steps.spans(runner.input_batch):
        if running.rows is not None:
            running.rows.add(start, table[row : row + count])
        row += count
    return hidden


def _sample(steps: Steps, original: Any, runner: Any, logits: Any, drafts: Any) -> Any:
    """Draws, and notes checksums of the raw logits and logarithms of what was drawn."""
    if logits is None or not steps.scheduled:
        return original(runner, logits, drafts)
    heads, raw = row_sums(logits).tolist(), logits.clone()
    output = original(runner, logits, drafts)
    drawn = output.sampled_token_ids
    row = 0
    rows: list[int] = []
    tokens: list[torch.Tensor] = []
    places: list[tuple[Running, int]] = []
    for index, (running, start, count) in enumerate(steps.spans(runner.input_batch)):
        # A request has a row of logits for its last token and one for each draft before it.
        mine = 1 if drafts is None else drafts.num_draft_tokens[index] + 1
        for step in range(mine):
            position = start + count - mine + step
            if running.rows is not None:
                running.rows.add_logits(position, heads[row + step])
            rows.append(row + step)
            tokens.append(drawn[index, step])
            places.append((running, position + 1))
        row += mine
    ids = torch.stack(tokens).to(torch.int64)
    kept = ids >= 0  # behind the first draft that was not kept stands -1
    values = ops.token_logprob(raw[rows].float(), ids.clamp(min=0), dtype=torch.float32)
    words = bits.view(values).tolist()
    for (running, position), word, real in zip(places, words, kept.tolist(), strict=True):
        if real:
            running.logprobs[position] = word & 0xFFFFFFFF
    steps.scheduled = None
    return output


def _free(steps: Steps, original: Any, scheduler: Any, request: Any, *args: Any, **kw: Any) -> Any:
    if request.sampling_params is not None:
        steps.finished(request)
    return original(scheduler, request, *args, **kw)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {k: v for k, v in dataclasses.asdict(value).items() if v is not None}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, dict):
        return {str(k): v for k, v in value.items()}
    return value
