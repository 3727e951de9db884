"""Where the plugin waits: until a configuration or a worker that asks for samebits is made, or a
request is taken by an engine that does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from samebits.errors import SwitchError
from samebits.integrations.vllm.options import requested, settle
from samebits.integrations.vllm.requests import admit

_MARK = "_samebits_waits"


def wait() -> None:
    """Puts the three hooks in place, once in a process.

    They only read ``additional_config`` and the environment unless samebits is asked for.
    """
    from vllm.config import VllmConfig
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.worker.worker_base import WorkerBase

    _wrap(VllmConfig, "__post_init__", _configured)
    _wrap(WorkerBase, "__init__", _worker_made)
    _wrap(InputProcessor, "process_inputs", request_taken)


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(call, _MARK, True)
    setattr(owner, name, call)


def _configured(original: Callable[..., None], config: Any, *args: Any, **kwargs: Any) -> None:
    options = requested(config.additional_config)
    if options is None or config.model_config is None:
        original(config, *args, **kwargs)
        return
    from samebits.integrations.vllm import config as rules

    rules.prepare(config)
    backend = config.compilation_config.backend
    original(config, *args, **kwargs)
    rules.finish(config, backend)
    reasons = rules.reasons(config) + rules.receipts_reasons(config, options.receipts)
    settle(options, reasons, "this configuration")


def _worker_made(original: Callable[..., None], worker: Any, *args: Any, **kwargs: Any) -> None:
    original(worker, *args, **kwargs)
    options = requested(worker.vllm_config.additional_config)
    from samebits.integrations.vllm import workers

    if options is not None:
        workers.equip(worker, options)
    elif workers.equipped():
        raise SwitchError(
            "another engine of this process runs with samebits, and this one does not ask for it: "
            "give each a process of its own (VLLM_ENABLE_V1_MULTIPROCESSING=1)"
        )


def request_taken(original: Callable[..., Any], taker: Any, *args: Any, **kwargs: Any) -> Any:
    """Where requests are made for the engine: an error is told to the one who sent the request."""
    request = original(taker, *args, **kwargs)
    if requested(taker.vllm_config.additional_config) is not None:
        admit(request, taker.model_config.get_vocab_size())
    return request
