"""What is registered with transformers, and the few of its methods that act otherwise for models
whose attention is ours. Everything is undone by `remove`; other models never notice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, GenerationMixin

from samebits import mode
from samebits.errors import SamebitsError, UncoveredError

try:
    from transformers.generation.continuous_batching import continuous_api
    from transformers.generation.continuous_batching.model_runner import ModelRunner
    from transformers.integrations.moe import ExpertsInterface
except ImportError as error:
    raise SamebitsError(
        f"transformers {transformers.__version__} cannot be used with samebits: use releases "
        "5.17 to 5.24"
    ) from error

from samebits.integrations.transformers import batch_receipts, batching, receipts, steps
from samebits.integrations.transformers.attention import (
    attention_forward,
    paged_attention_forward,
)
from samebits.integrations.transformers.experts import experts_forward
from samebits.integrations.transformers.masks import mask
from samebits.integrations.transformers.sampling import (
    SeededSampling,
    checked_all,
    unpadded,
    without_padding,
)

NAME = "samebits"
#: The same attention while continuous batching runs: it needs no mask.
PAGED = f"{NAME}_paged"
#: Implementations that stand in for ours when every model is to use it.
_REPLACED = ("sdpa", "paged|sdpa")
_REPLACED_EXPERTS = ("grouped_mm", "batched_mm")
_REFUSED = (
    "eager", "paged|eager", "flex_attention", "flash_attention_2", "flash_attention_3",
    "flash_attention_4", "paged|flash_attention_2", "paged|flash_attention_3",
    "paged|flash_attention_4",
)  # fmt: skip

_undo: list[Callable[[], Any]] = []
_undo_all: list[Callable[[], Any]] = []


def install() -> None:
    """Registers "samebits" for attention, masks and experts. Idempotent."""
    if _undo:
        return
    _put(AttentionInterface, NAME, attention_forward, _undo)
    _put(AttentionInterface, PAGED, paged_attention_forward, _undo)
    _put(AttentionMaskInterface, NAME, mask, _undo)
    _put(ExpertsInterface, NAME, experts_forward, _undo)
    _wrap(continuous_api.ContinuousBatchingManager, "switch_to_cb_friendly_attn", _keep_attention)
    _wrap(continuous_api.ContinuousBatchingManager, "add_request", batching.add_request)
    _wrap(ModelRunner, "compute_batch", _seeds_first)
    _wrap(ModelRunner, "_forward_process_and_sample", _positions_first)
    _wrap(ModelRunner, "_sample", _sample)
    _wrap(continuous_api.OutputRouter, "deliver", batch_receipts.deliver)
    _wrap(continuous_api.OutputRouter, "deliver_batch", batch_receipts.deliver_batch)
    _wrap(GenerationMixin, "generate", _generate)
    _wrap(GenerationMixin, "_valid_auto_compile_criteria", _no_compilation)
    _wrap(GenerationMixin, "_prepare_generation_config", _seeded_config)
    _wrap(GenerationMixin, "_get_logits_processor", _seeded_processors)


def install_for_all() -> None:
    """Puts our functions in the place of "sdpa" and of the experts' defaults, and refuses the other
    implementations, for every model of this process and while the switch is on. Idempotent.
    """
    install()
    if _undo_all:
        return
    _wrap(AttentionInterface, "get_interface", _our_attention, _undo_all)
    _wrap(ExpertsInterface, "get_interface", _our_experts, _undo_all)
    stock = AttentionMaskInterface._global_mapping["sdpa"]

    def either(*args: Any, **kwargs: Any) -> Any:
        return (mask if mode.is_on() else stock)(*args, **kwargs)

    _put(AttentionMaskInterface, "sdpa", either, _undo_all)


def install_server() -> None:
    """Gives the requests of ``transformers serve`` seeds of their own. Idempotent."""
    from transformers.cli.serving import utils as server

    if hasattr(server.BaseHandler._build_generation_config, "__wrapped__"):
        return
    _wrap(server.BaseHandler, "_build_generation_config", batching.server_config, _undo_all)
    _wrap(server.CBGenerateManager, "generate_streaming", batching.server_stream, _undo_all)
    _wrap(server.CBGenerateManager, "generate_non_streaming", batching.server_answer, _undo_all)


def remove(for_all_only: bool = False) -> None:
    """Takes back what `install_for_all`, and what `install`, has changed."""
    for log in (_undo_all,) if for_all_only else (_undo_all, _undo):
        while log:
            log.pop()()


def ours(model: Any) -> bool:
    """Whether a model's attention is ours."""
    name = model.config.get_text_config()._attn_implementation
    return name in (NAME, PAGED) or (bool(_undo_all) and mode.is_on() and name in _REPLACED)


def _our_attention(original: Any, interface: Any, name: str, *rest: Any, **kwargs: Any) -> Any:
    """What a layer calls: ours, while the switch is on."""
    if mode.is_on() and name in _REPLACED:
        return attention_forward
    if mode.is_on() and name in _REFUSED:
        return functools.partial(_refuse, name)
    return original(interface, name, *rest, **kwargs)


def _our_experts(original: Any, interface: Any, name: str, *rest: Any, **kwargs: Any) -> Any:
    if mode.is_on() and name in _REPLACED_EXPERTS:
        return experts_forward
    return original(interface, name, *rest, **kwargs)


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    raise UncoveredError(
        f'attn_implementation="{name}"', "its kernels split their sums by the shape of the batch",
        remedy='Load the model with attn_implementation="samebits" or "sdpa".',
    )  # fmt: skip


def _put(interface: Any, name: str, function: Any, log: list[Callable[[], Any]]) -> None:
    table = interface._global_mapping
    before = table.get(name)
    interface.register(name, function)
    log.append(lambda: table.pop(name) if before is None else table.__setitem__(name, before))


def _wrap(
    owner: Any, name: str, around: Callable[..., Any], log: list[Callable[[], Any]] = _undo
) -> None:
    """Puts `around(original, self, ...)` in the place of a method."""
    original = getattr(owner, name, None)
    if original is None:
        raise SamebitsError(
            f"transformers {transformers.__version__} has no {owner.__name__}.{name}: use "
            "releases 5.17 to 5.24"
        )

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(owner, name, method)
    log.append(lambda: setattr(owner, name, original))


def _keep_attention(original: Any, manager: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """Continuous batching would change to FlashAttention, or refuse a name that it does not know.
    The manager puts back what it finds in `_original_attn_impl` when it stops.
    """
    if not ours(model):
        original(manager, model, *args, **kwargs)
    elif model.config._attn_implementation != PAGED:
        model._samebits_seed = torch.initial_seed()  # the manager is about to draw another
        manager._original_attn_impl = model.config._attn_implementation
        model.set_attn_implementation(PAGED)


def _no_compilation(original: Any, model: Any, *args: Any, **kwargs: Any) -> bool:
    """Under the switch a compiled model calls the same operations one by one: nothing is won."""
    return False if ours(model) else bool(original(model, *args, **kwargs))


def _generate(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """``model.generate(...)``: its steps can run again, and each row leaves a receipt."""
    with steps.stepping(model) if ours(model) else nullcontext():
        return receipts.generate(original, model, *args, **kwargs)


def _seeded_config(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """``generate(do_sample=True, seeds=[...])``; without seeds, that of ``torch.manual_seed``."""
    seeds = kwargs.pop("seeds", None) if ours(model) else None
    config, rest = original(model, *args, **kwargs)
    if ours(model) and config.do_sample and config.cache_implementation != "paged":
        if (config.num_beams or 1) > 1:
            raise UncoveredError(
                "generate", "beam search with sampling draws for all beams at once",
                remedy="Use num_beams=1, or do_sample=False.",
            )  # fmt: skip
        if seeds is None:
            seeds = getattr(config, batching.REQUEST_SEED, torch.initial_seed())
        config._samebits_seeds = checked_all(seeds)
        config.do_sample = False
    receipts.note_config(config)
    return config, rest


def _seeded_processors(
    original: Any, model: Any, generation_config: Any, *args: Any, **kwargs: Any
) -> Any:
    model._samebits_config = generation_config  # for the receipts of continuous batching
    seeds = getattr(generation_config, "_samebits_seeds", None)
    inputs = (kwargs.get("model_kwargs") or {}) if ours(model) else {}
    decodes = model.config.is_encoder_decoder
    # A decoder behind an encoder starts its rows together, however long the encoder's are.
    seen = _mask_of(inputs, "decoder_attention_mask" if decodes else "attention_mask")
    if seeds is not None:
        generation_config.do_sample = True  # or temperature, top-k and their like would be left out
    try:
        processors = original(model, generation_config, *args, **kwargs)
    finally:
        if seeds is not None:
            generation_config.do_sample = False
    prompts, mask_of_prompts = kwargs.get("encoder_input_ids"), _mask_of(inputs, "attention_mask")
    if prompts is not None and prompts.dim() == 2 and mask_of_prompts is not None:
        without_padding(processors, prompts, mask_of_prompts)
    columns = kwargs.get("input_ids_seq_length")
    processors = unpadded(processors, seen, columns)
    if seeds is not None:
        copies = generation_config.num_return_sequences or 1
        before = None if decodes and seen is None else _tokens_before(prompts, seen, columns)
        processors.append(SeededSampling(seeds, before, copies))
    return processors


def _tokens_before(
    prompts: torch.Tensor | None, seen: torch.Tensor | None, columns: int | None
) -> torch.Tensor | None:
    """Tokens of each prompt [B] less the columns of ids that it has; None: there are as many.

    Prompts may be embedded already, or partly lie in a cache; and columns may be padding.
    """
    if seen is not None:
        return (seen != 0).sum(1) - (seen.shape[1] if columns is None else columns)
    if prompts is None or columns is None or prompts.shape[1] == columns:
        return None
    return torch.full((len(prompts),), prompts.shape[1] - columns)


def _mask_of(inputs: dict[str, Any], name: str) -> torch.Tensor | None:
    """A mask [B, T] among a model's inputs, False or 0 at padding."""
    found = inputs.get(name)
    return found if found is not None and found.dim() == 2 else None


def _seeds_first(original: Any, runner: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """One step of continuous batching; its seeds are placed before anything is captured."""
    seed = runner.cb_config.seed
    if seed is None:
        seed = getattr(model, "_samebits_seed", 0)
    if ours(model) and runner.do_sample:
        batching.place_seeds(runner, model.device, seed)
    batch_receipts.note_step(runner, model, seed if ours(model) else None)
    if ours(model):
        steps.batch(original, runner, model, *args, **kwargs)
    else:
        original(runner, model, *args, **kwargs)


def _positions_first(original: Any, runner: Any, model: Any, batch_data: Any, *args: Any) -> None:
    """Positions of the tokens about to be drawn, for `_sample`."""
    at = None
    if ours(model):
        at = batch_data["position_ids"][0, batch_data["logits_indices"]].long() + 1
    runner._samebits_positions = at
    batch_receipts.forward(original, runner, model, batch_data, *args)


def _sample(original: Any, runner: Any, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
    if runner._samebits_positions is None:
        original(runner, scores, output_ids)
    else:
        batching.sample_rows(runner, scores, output_ids)
