"""Forward passes that run again, before their tokens leave, if a kernel says that its path was
wrong (`samebits.guard.step`).

On a CPU every call is put right before the next one, so that there is nothing to find here.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from samebits import guard
from samebits.guard import observe
from samebits.guard.receipts.operands import samplers
from samebits.integrations.transformers.cache import cache_of

_MARK = "_samebits_step"
#: What of continuous batching runs as CUDA graphs.
_GRAPHS = ("use_cuda_graph_varlen", "use_cuda_graph_decode")


@contextmanager
def stepping(model: Any) -> Iterator[None]:
    """Each forward pass of the block is a step of the guard, if paths are checked."""
    before = vars(model).get("forward")  # accelerate puts one there, too
    if not guard.setting().path or hasattr(before, _MARK):
        yield
        return
    model.forward = _stepped(model, model.forward)
    setattr(model.forward, _MARK, True)
    try:
        yield
    finally:
        if before is None:
            del model.forward
        else:
            model.forward = before


def _stepped(model: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        if observe.capturing():
            return forward(*args, **kwargs)
        restore = snapshot(cache_of(kwargs))
        output: Any = None

        def run() -> torch.Tensor:
            nonlocal output
            output = forward(*args, **kwargs)
            logits: torch.Tensor = output[0] if isinstance(output, tuple) else output.logits
            return logits

        def undo() -> None:
            restore()
            for sampler in samplers():
                sampler.again()

        guard.step(run, undo=undo, device=model.device)
        return output  # of the last run, which is believed

    return stepped


def snapshot(cache: Any) -> Callable[[], None]:
    """A function that gives a cache of transformers the contents that it has now.

    Layers that grow replace their tensors, and others are written by position, so that it is
    enough to remember which tensors there are. What is moved in place is copied.
    """
    both = [
        getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")
    ]
    if any(part is not None for part in both):
        parts, updated = [snapshot(part) for part in both], dict(cache.is_updated)

        def restore_both() -> None:
            for part in parts:
                part()
            cache.is_updated = dict(updated)

        return restore_both
    layers = getattr(cache, "layers", None)
    if not isinstance(layers, list):
        return lambda: None
    kept = [
        (layer, {k: _kept(v, _moves(layer)) for k, v in vars(layer).items()}) for layer in layers
    ]

    def restore() -> None:
        del layers[len(kept) :]
        for layer, attributes in kept:
            now = vars(layer)
            for name in now.keys() - attributes.keys():
                delattr(layer, name)
            for name, (value, contents) in attributes.items():
                setattr(layer, name, _back(value, contents))

    return restore


def _moves(layer: Any) -> bool:
    """Whether a layer overwrites what it holds: a window that rolls in place, recurrent states."""
    fixed = getattr(layer, "is_sliding", False) and hasattr(layer, "cumulative_length_int")
    return bool(fixed) or hasattr(layer, "recurrent_states")


def _kept(value: Any, moves: bool) -> tuple[Any, Any]:
    """A value, and a copy of its contents if they change in place."""
    changes = value.dim() == 0 if isinstance(value, torch.Tensor) else False
    return value, copy.deepcopy(value) if moves or changes else None


def _back(value: Any, contents: Any) -> Any:
    """The value with its contents: a tensor keeps its place in memory."""
    if isinstance(value, torch.Tensor) and contents is not None:
        return value.copy_(contents)
    return value if contents is None else copy.deepcopy(contents)


def batch(
    original: Callable[..., None], runner: Any, model: Any, *args: Any, **kwargs: Any
) -> None:
    """One step of continuous batching. One that was replayed from a graph runs again without it."""
    graphs = {name: getattr(runner, name, False) for name in _GRAPHS}
    if not guard.setting().path or not any(graphs.values()):
        with stepping(model):
            original(runner, model, *args, **kwargs)
        return
    io = runner.inputs_and_outputs

    def run() -> torch.Tensor:
        original(runner, model, *args, **kwargs)
        ids: torch.Tensor = io.get_cb_kwargs()[2]
        return ids

    def undo() -> None:
        for name in graphs:
            setattr(runner, name, False)

    stream = getattr(io, "compute_stream", None)
    try:
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            guard.step(run, undo=undo, device=model.device)
    finally:
        for name, value in graphs.items():
            setattr(runner, name, value)
