"""Continuous batching and the server: sampling by each request's own seed.

A request's seed travels as its name: `Named` is a string with a seed, which transformers keeps and
hands around like any other request id. Before each step the seeds of the rows that draw a token go
to a buffer on the device, outside of what a CUDA graph captures.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch

from samebits import mode
from samebits.integrations.transformers.sampling import checked, draw, signed
from samebits.ops import token_logprob

#: Where a generation config of the server carries its request's seed.
REQUEST_SEED = "_samebits_request_seed"
_seed_of_call: ContextVar[int | None] = ContextVar("seed", default=None)


class Named(str):
    """A request id with a seed."""

    seed: int


def add_request(original: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
    """``manager.add_request(..., seed=)``."""
    seed = kwargs.pop("seed", None)
    seed = _seed_of_call.get() if seed is None else seed
    if seed is None:
        return original(manager, *args, **kwargs)
    call = inspect.signature(original).bind(manager, *args, **kwargs)
    name = Named(call.arguments.get("request_id") or f"req_{uuid.uuid4().hex}")
    name.seed = checked(seed)
    call.arguments["request_id"] = name
    return original(*call.args, **call.kwargs)


def place_seeds(runner: Any, device: torch.device, default: int) -> None:
    """Seeds of the rows that draw a token in the coming step, to ``runner._samebits_seeds``."""
    io = runner.inputs_and_outputs
    host = io.io_pairs[io.current_pair].host_io if hasattr(io, "io_pairs") else io
    rows = [r.state.request_id for r in host.requests_in_batch if r.has_new_token]
    seeds = torch.tensor([signed(getattr(name, "seed", default)) for name in rows])
    stream = io.compute_stream
    with torch.cuda.stream(stream) if stream is not None else nullcontext():
        if not hasattr(runner, "_samebits_seeds"):
            size = runner.cb_config.max_requests_per_batch
            runner._samebits_seeds = torch.zeros(size, dtype=torch.int64, device=device)
        runner._samebits_seeds[: len(rows)].copy_(seeds.to(torch.int64))


def sample_rows(runner: Any, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
    """Tokens of processed scores [1, R, V], and logarithms that a trainer can recompute."""
    rows = scores[0]
    count = rows.shape[0]
    if runner.do_sample:
        tokens = draw(rows, runner._samebits_seeds[:count], runner._samebits_positions)
    else:
        tokens = rows.argmax(-1)
    output_ids[0, :count].copy_(tokens)
    if runner.return_logprobs:
        logprobs = token_logprob(rows, tokens, dtype=torch.float32)
        output_ids[1, :count].copy_(logprobs.view(torch.int32))


@contextmanager
def seed_of(config: Any) -> Iterator[None]:
    """Requests that are added meanwhile, in this task, have the seed of a generation config."""
    token = _seed_of_call.set(getattr(config, REQUEST_SEED, None))
    try:
        yield
    finally:
        _seed_of_call.reset(token)


def server_config(original: Any, handler: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
    """``transformers serve`` would seed the whole process for every request that has a seed."""
    if not mode.is_on():
        return original(handler, body, *args, **kwargs)
    config = original(handler, {**body, "seed": None}, *args, **kwargs)
    if body.get("seed") is not None:
        setattr(config, REQUEST_SEED, int(body["seed"]))
    return config


def server_stream(original: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
    """A request to a server with continuous batching, its answer in pieces."""
    with seed_of(_config(original, manager, args, kwargs)):
        return original(manager, *args, **kwargs)


async def server_answer(original: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
    """The same, its answer in one piece."""
    with seed_of(_config(original, manager, args, kwargs)):
        return await original(manager, *args, **kwargs)


def _config(original: Any, manager: Any, args: Any, kwargs: Any) -> Any:
    return inspect.signature(original).bind(manager, *args, **kwargs).arguments["gen_config"]
