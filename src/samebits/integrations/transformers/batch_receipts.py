"""Receipts of continuous batching: requests come and go, a step holds parts of many."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from samebits import bits
from samebits.errors import UncoveredError
from samebits.guard.receipts import Recorder, active
from samebits.guard.receipts.operands import Sampler, Span
from samebits.guard.receipts.sums import Listener, Rows, Running, row_sums
from samebits.integrations.transformers.receipts import described, draw, listener_of, options_of
from samebits.ops import token_logprob


@dataclass
class _Request:
    """A request that runs: what is known of it, its options and seed, its manager."""

    running: Running
    options: dict[str, Any]
    seed: int | None
    steps: _Steps


class _Steps:
    """The steps of one manager with one recorder.

    Attributes:
        graphs: whether steps are replayed as CUDA graphs, in which nothing can be looked at.
    """

    graphs = False

    def __init__(self, recorder: Recorder, model: Any, config: Any) -> None:
        self.recorder, self.model = recorder, model
        self.listener: Listener | None = listener_of(model, recorder.sums)
        self.places = len(self.listener.places) if self.listener else 1
        self.sampler = Sampler(model, draw) if recorder.audit else None
        self.options = options_of(config) if config is not None else {}
        self._described: tuple[str, dict[str, bytes]] | None = None

    @property
    def described(self) -> tuple[str, dict[str, bytes]]:
        """Name and objects of the identity; weights are looked at once a manager."""
        if self._described is None:
            self._described = described(self.model, self.listener)
        return self._described


#: By request id. Managers give out ids of their own, or are given unique ones.
_running: dict[str, _Request] = {}


def note_step(runner: Any, model: Any, default_seed: int | None) -> None:
    """Notes the requests of the coming step, before it is computed or replayed.

    Raises:
        UncoveredError: the step is a CUDA graph's, in which no checksum is computed.
    """
    recorder = active()
    if recorder is None:
        return
    graphs = getattr(runner, "use_cuda_graph_varlen", False) or getattr(
        runner, "use_cuda_graph_decode", False
    )
    if graphs and (recorder.sums != "none" or recorder.audit):
        raise UncoveredError(
            "continuous batching with CUDA graphs", "checksums and operands are taken by hooks, "
            "which a graph does not call",
            remedy='Use samebits.receipts(..., sums="none", audit=0), or use_cuda_graph=False in '
            "the ContinuousBatchingConfig.",
        )  # fmt: skip
    steps = getattr(runner, "_samebits_steps", None)
    if steps is None or steps.recorder is not recorder:
        steps = _Steps(recorder, model, getattr(model, "_samebits_config", None))
        steps.graphs = graphs
        runner._samebits_steps = steps
    for future in _batch(runner):
        state = future.state
        if state.request_id not in _running:
            options = steps.options | {
                name: value
                for name, value in (
                    ("max_new_tokens", state.max_new_tokens),
                    *getattr(state, "logit_processor_kwargs", {}).items(),
                )
                if value is not None
            }
            seed = getattr(state.request_id, "seed", default_seed) if runner.do_sample else None
            if steps.sampler is not None and draw.random() < recorder.audit:
                steps.sampler.add(state.request_id)
            running = Running(Rows(steps.places) if steps.listener else None)
            _running[state.request_id] = _Request(running, options, seed, steps)


def forward(original: Any, runner: Any, model: Any, batch_data: Any, *args: Any) -> None:
    """One step's forward pass and draw, with checksums and logarithms for its requests."""
    steps = getattr(runner, "_samebits_steps", None)
    if steps is None or steps.graphs or active() is not steps.recorder:
        original(runner, model, batch_data, *args)  # nothing may wait while a graph is captured
        return
    total, seen = batch_data["input_ids"].numel(), []
    with ExitStack() as stack:
        after = model.register_forward_hook(lambda _m, _a, out: seen.append(out.logits.detach()))
        stack.callback(after.remove)
        if steps.listener is not None:
            stack.enter_context(steps.listener.listening())
            steps.listener.begin()
        if steps.sampler is not None:
            stack.enter_context(steps.sampler.listening())
            spans = _spans(runner)
            steps.sampler.begin(total, lambda name: spans.get(name, []))
        original(runner, model, batch_data, *args)
        if steps.sampler is not None:
            steps.sampler.end()
    sums = steps.listener.take(total) if steps.listener is not None else None
    logits = seen[0][0]
    indices = batch_data["logits_indices"]
    if logits.shape[0] != len(indices):
        logits = logits[indices]
    output_ids = args[-1]
    tokens = output_ids[0, : len(indices)].long()
    values = token_logprob(logits.float(), tokens, dtype=torch.float32)
    words = [x & 0xFFFFFFFF for x in bits.view(values).tolist()]
    heads = row_sums(logits).tolist()
    row = drawn = 0
    for future in _batch(runner):
        running, count = _running[future.state.request_id].running, future.query_length
        start = future.state.position_offset - count
        if running.rows is not None and sums is not None:
            running.rows.add(start, sums[row : row + count])
            if future.has_new_token:
                running.rows.add_logits(start + count - 1, heads[drawn])
        row += count
        if future.has_new_token:
            running.logprobs[start + count] = words[drawn]
            drawn += 1


def deliver(original: Any, router: Any, output: Any) -> None:
    """An answer, or a piece of one, goes out: finished ones leave a receipt first."""
    _finished(output)
    original(router, output)


def deliver_batch(original: Any, router: Any, outputs: list[Any]) -> None:
    """The same for several."""
    for output in outputs:
        _finished(output)
    original(router, outputs)


def _finished(output: Any) -> None:
    if not output.is_finished():
        return
    request = _running.pop(output.request_id, None)
    recorder = active()
    if request is None or output.error is not None or recorder is not request.steps.recorder:
        if request is not None and request.steps.sampler is not None:
            request.steps.sampler.pop(output.request_id)
        return
    identity, objects = request.steps.described
    request.running.keep(request.steps.sampler, output.request_id)
    answer = list(output.generated_tokens)
    full = len(answer) >= request.options.get("max_new_tokens", len(answer) + 1)
    recorder.add(
        request.running.receipt(
            request=str(output.request_id), identity=identity, input=list(output.prompt_ids),
            output=answer, sampling=request.options, seed=request.seed,
            finish="length" if full else "stop",
        ),
        objects | request.running.audit,
    )  # fmt: skip


def _spans(runner: Any) -> dict[str, list[Span]]:
    """Where the tokens of each request of the step are, by its name."""
    found: dict[str, list[Span]] = {}
    row = 0
    for future in _batch(runner):
        count = future.query_length
        start = future.state.position_offset - count
        found[future.state.request_id] = [(row, count, start)]
        row += count
    return found


def _batch(runner: Any) -> list[Any]:
    """The requests of the step at hand, in the order of their tokens."""
    io = runner.inputs_and_outputs
    host = io.io_pairs[io.current_pair].host_io if hasattr(io, "io_pairs") else io
    return list(host.requests_in_batch)
