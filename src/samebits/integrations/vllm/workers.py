"""A worker with samebits: the switch, the plan, vLLM's layers, and agreement among the ranks."""

from __future__ import annotations

import functools
import logging
from typing import Any

from samebits.errors import PlanError
from samebits.integrations.vllm import hooks
from samebits.integrations.vllm.options import Options
from samebits.integrations.vllm.patches import Patches
from samebits.ops import parallel
from samebits.ops.parallel import ranks

log = logging.getLogger("vllm.samebits")
_BACKEND = "samebits.integrations.vllm.attention.SamebitsBackend"
#: What is replaced in this process, and for which options.
_patches = Patches()
_options: Options | None = None


def equipped() -> bool:
    """Whether a worker of this process has samebits."""
    return _options is not None


def offer_attention() -> None:
    """Registers the attention backend with vLLM in this process. Idempotent.

    On a GPU it is chosen by the configuration; on a CPU, where vLLM has no choice, it stands in for
    the only one.
    """
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    name = "CPU_ATTN" if current_platform.is_cpu() else "CUSTOM"
    register_backend(AttentionBackendEnum[name], _BACKEND)


def equip(worker: Any, options: Options) -> None:
    """Makes a worker that was just made compute by contracts.

    Raises:
        UncoveredError: parts of vLLM in this process are not what the plugin was written for.
        PlanError: the plan cannot be put in force.
    """
    global _options
    import samebits
    from samebits.integrations.vllm import layers

    samebits.enable(policy=options.policy)
    if options.plan is not None:
        samebits.plan.load(options.plan)
    offer_attention()
    if _options is None:
        _replace(worker.vllm_config, options)
        _options = options
    load = worker.load_model

    @functools.wraps(load)
    def load_model(*args: Any, **kwargs: Any) -> Any:
        agree(options)
        result = load(*args, **kwargs)
        check_model(worker, options)
        layers.fuse(_patches, worker.model_runner.get_model())
        return result

    worker.load_model = load_model
    if worker.vllm_config.parallel_config.tensor_parallel_size > 1:
        execute = worker.execute_model

        @functools.wraps(execute)
        def execute_model(*args: Any, **kwargs: Any) -> Any:
            parallel.check()  # a replayed graph calls nothing that could tell
            return execute(*args, **kwargs)

        worker.execute_model = execute_model


def _replace(config: Any, options: Options) -> None:
    from samebits.integrations.vllm import layers, lora, moe, runner2, sampler, verify

    ranks = config.parallel_config.tensor_parallel_size
    layers.install(_patches, options.shared_tree(ranks), options.receipts is not None)
    moe.install(_patches, ranks if config.model_config.is_moe else 1)
    sampler.install(_patches, config.model_config.seed or 0)
    verify.install(_patches)
    if config.lora_config is not None:
        lora.install(_patches)
    if getattr(config, "use_v2_model_runner", False):
        runner2.install(_patches)
    if options.receipts is not None:
        from samebits.integrations.vllm import receipts

        receipts.install(_patches, options.receipts, config.model_config.seed or 0)


def decides_bits(options: Options) -> dict[str, str]:
    """Everything that must be the same on all ranks, by name."""
    return {
        **ranks.decides_bits(),
        "policy": options.policy,
        "tp_invariant": str(options.tp_invariant),
    }


def agree(options: Options) -> None:
    """Refuses to start if the ranks of this engine would not compute alike.

    Raises:
        PlanError: a worker has another plan, release or option than rank 0. Every rank raises it.
    """
    import torch.distributed as dist
    from vllm.distributed.parallel_state import get_world_group

    group = get_world_group()
    if group.world_size == 1:
        return
    of_ranks: list[Any] = [None] * group.world_size
    dist.all_gather_object(of_ranks, decides_bits(options), group=group.cpu_group)
    found = ranks.disagreement(of_ranks)
    if found:
        raise PlanError(
            f"the workers of this engine would compute different bits: {found}. Give all of them "
            "one release and one plan file"
        )


def check_model(worker: Any, options: Options) -> None:
    """Refuses a loaded model with parts that no contract covers, and reports what is in force."""
    from samebits.integrations.vllm import model

    found = worker.model_runner.get_model()
    hooks.settle(options, model.reasons(found), "this model")
    log.info("samebits: %s", model.summary(found, decides_bits(options)))
