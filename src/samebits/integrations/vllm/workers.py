"""A worker with samebits: the switch, the plan, vLLM's layers, and agreement among the ranks."""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch

from samebits.errors import PlanError
from samebits.integrations.vllm import config
from samebits.integrations.vllm.options import Options, settle
from samebits.integrations.vllm.patches import Patches
from samebits.ops import parallel
from samebits.ops.parallel import ranks

log = logging.getLogger("vllm.samebits")
#: What is replaced in this process, and for which options.
_patches = Patches()
_options: Options | None = None


def equipped() -> bool:
    """Whether a worker of this process has samebits."""
    return _options is not None


def equip(worker: Any, options: Options) -> None:
    """Makes a worker that was just made compute by contracts.

    Raises:
        UncoveredError: parts of vLLM in this process are not what the plugin was written for.
        PlanError: the plan cannot be put in force.
    """
    global _options
    import samebits
    from samebits.integrations.vllm import layers, moe, steps

    samebits.enable(policy=options.policy)
    if options.plan is not None:
        samebits.plan.load(options.plan)
    config.offer_attention()
    if _options is None:
        _replace(worker.vllm_config, options)
        _options = options
    load, several = worker.load_model, worker.vllm_config.parallel_config.tensor_parallel_size > 1

    @functools.wraps(load)
    def load_model(*args: Any, **kwargs: Any) -> Any:
        agree(options)
        result = load(*args, **kwargs)
        check_model(worker, options)
        model = worker.model_runner.get_model()
        layers.fuse(_patches, model)
        layers.follow(model)
        if several:
            moe.whole(model)
        steps.attach(model, _second_runner(worker.vllm_config))
        return result

    worker.load_model = load_model
    if options.warm_up:
        _warm_up_once(worker)
    if several:
        execute = worker.execute_model

        @functools.wraps(execute)
        def execute_model(*args: Any, **kwargs: Any) -> Any:
            parallel.check()  # a replayed graph calls nothing that could tell
            return execute(*args, **kwargs)

        worker.execute_model = execute_model


def _warm_up_once(worker: Any) -> None:
    """Compiles before the worker's first dry run: from there on vLLM knows how long a page is."""
    from samebits.integrations.vllm import warm

    measure = worker.determine_available_memory

    @functools.wraps(measure)
    def determine_available_memory(*args: Any, **kwargs: Any) -> Any:
        del worker.determine_available_memory
        if torch.device(worker.device).type == "cuda":
            warm.warm_up(worker)
        return measure(*args, **kwargs)

    worker.determine_available_memory = determine_available_memory


def _replace(engine: Any, options: Options) -> None:
    """Replaces vLLM's layers and samplers in this process for an engine's ``VllmConfig``."""
    from samebits.integrations.vllm import layers, lora, moe, runner2, sampler, steps, verify

    ranks, model = engine.parallel_config.tensor_parallel_size, engine.model_config
    layers.install(_patches, options.shared_tree(ranks), options.receipts is not None)
    moe.install(_patches, ranks if model.is_moe else 1)
    sampler.install(_patches, model.seed or 0)
    verify.install(_patches)
    if engine.lora_config is not None:
        lora.install(_patches)
    if _second_runner(engine):
        runner2.install(_patches)
    steps.install(_patches, _second_runner(engine))
    if options.receipts is not None:
        from samebits.integrations.vllm import receipts

        receipts.install(_patches, options.receipts, model.seed or 0, _unusual(engine, options))


def _unusual(engine: Any, options: Options) -> tuple[tuple[str, str], ...]:
    """Options that decide bits, where they are not the usual ones."""
    found = {}
    if options.shared_tree(engine.parallel_config.tensor_parallel_size):
        found["tp_invariant"] = "true"
    if str(engine.cache_config.cache_dtype) != "auto":
        found["kv_cache"] = str(engine.cache_config.cache_dtype)
    return tuple(found.items())


def _second_runner(engine: Any) -> bool:
    return bool(getattr(engine, "use_v2_model_runner", False))


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
    settle(options, model.reasons(found), "this model")
    log.info("samebits: %s", model.summary(found, decides_bits(options)))
