"""Where the plugin waits: until a configuration or a worker that asks for samebits is made."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from samebits.errors import SwitchError, UncoveredError
from samebits.integrations.vllm.options import Options, requested

log = logging.getLogger("vllm.samebits")
_MARK = "_samebits_waits"


def wait() -> None:
    """Puts the two hooks in place, once in a process.

    Both only read ``additional_config`` and the environment unless samebits is asked for.
    """
    from vllm.config import VllmConfig
    from vllm.v1.worker.worker_base import WorkerBase

    _wrap(VllmConfig, "__post_init__", _configured)
    _wrap(WorkerBase, "__init__", _worker_made)


def _wrap(owner: Any, name: str, around: Callable[..., None]) -> None:
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        around(original, self, *args, **kwargs)

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


def settle(options: Options, reasons: list[str], what: str) -> None:
    """Refuses `what` for its reasons, or names them in the log, as the policy says.

    Raises:
        UncoveredError: there are reasons and the policy is ``refuse``.
    """
    if not reasons:
        return
    listed = "".join(f"\n  - {reason}" for reason in reasons)
    if options.policy == "refuse":
        raise UncoveredError(
            "vLLM",
            f"{what} has parts that no contract covers:{listed}\n",
            remedy="Change them, or run with --additional-config "
            '\'{"samebits": {"policy": "warn"}}\', which promises nothing for what is listed',
        )
    log.warning("samebits promises nothing for these parts of %s:%s", what, listed)
