"""Steps of vLLM that run again, before their tokens leave, if a kernel says that its path was wrong
(`samebits.guard.step`). A step has two parts: the forward pass, and the rows of logits.

Keys and values are written by position, so a run leaves nothing behind that has to be undone. On a
CPU every call is put right before the next one, and there is nothing to find here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from samebits import guard
from samebits.guard import observe
from samebits.integrations.vllm.patches import Patches


def install(patches: Patches, second_runner: bool) -> None:
    """Makes forward passes of this process' model runner steps, those in captured graphs too."""
    if second_runner:
        from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager as Graphs

        patches.set(Graphs, "run_fullgraph", _replayed(Graphs.run_fullgraph))
    else:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner as Runner

        patches.set(Runner, "_model_forward", _first_runner(Runner._model_forward))


def attach(model: Any, second_runner: bool) -> None:
    """Makes what a loaded model is called for directly steps, too."""
    model.compute_logits = _stepped(model.compute_logits)
    if second_runner:
        model.forward = _stepped(model.forward)


def _first_runner(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(runner: Any, *args: Any, **kwargs: Any) -> Any:
        if not _checked():
            return original(runner, *args, **kwargs)
        from vllm.forward_context import get_forward_context

        context = get_forward_context()
        mode = context.cudagraph_runtime_mode

        def eagerly() -> None:
            context.cudagraph_runtime_mode = type(mode).NONE

        try:
            rows = _real_rows(context)
            return _step(lambda: original(runner, *args, **kwargs), rows, undo=eagerly)
        finally:
            context.cudagraph_runtime_mode = mode

    return forward


def _replayed(original: Callable[..., Any]) -> Callable[..., Any]:
    """The second runner has the operands of its graphs in buffers, and no context to run without
    them: a step that does not come right by replaying the graph is not believed."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not _checked():
            return original(*args, **kwargs)
        return _step(lambda: original(*args, **kwargs), fixed=True)

    return run


def _stepped(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not _checked():
            return original(*args, **kwargs)
        return _step(lambda: original(*args, **kwargs))

    return run


def _checked() -> bool:
    return guard.setting().path and not observe.capturing()


def _real_rows(context: Any) -> int | None:
    """Rows of a step's results that belong to requests. A graph has others behind them, in which
    anything may be, and without the graph anything else; None: not known, all of them."""
    found = getattr(context, "attn_metadata", None)
    first = next(iter(found.values()), None) if isinstance(found, dict) else None
    return getattr(first, "real", None)


def _step(compute: Callable[[], Any], rows: int | None = None, **options: Any) -> Any:
    """What `compute` gives in the run that is believed; only the first `rows` count."""
    output: Any = None

    def run() -> tuple[torch.Tensor, ...]:
        nonlocal output
        output = compute()
        parts = getattr(output, "tensors", None)  # between stages of a pipeline
        if isinstance(parts, dict):
            found = tuple(parts.values())
        else:
            found = output if isinstance(output, tuple) else (output,)
        return tuple(x[:rows] if isinstance(x, torch.Tensor) else x for x in found)

    guard.step(run, agree=_agreement(), **options)
    return output


def _agreement() -> Callable[[bool], bool] | None:
    """Whether any of the ranks that compute a layer together has found something; None: there is
    one, or they have nothing to find."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    if group.world_size == 1 or group.device.type == "cpu":
        return None

    def agree(found: bool) -> bool:
        any_of = torch.tensor([found], dtype=torch.int32)
        torch.distributed.all_reduce(any_of, torch.distributed.ReduceOp.MAX, group.cpu_group)
        return bool(any_of)

    return agree
