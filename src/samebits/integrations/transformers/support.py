"""Which models can keep the promise, and what speaks against the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedModel

#: Layers that carry a state along: one chunk of tokens and several steps have other sums.
_RECURRENT = ("linear_attention", "mamba", "recurrent", "conv", "moe_mamba")


def reasons_against(model: Any) -> list[str]:
    """Why a model's bits would depend on its batch, or on how it is run; empty: they do not."""
    if not isinstance(model, PreTrainedModel):
        return ["it is no PreTrainedModel of transformers (unwrap compiled or parallel models)"]
    return list(_reasons(model))


def _reasons(model: Any) -> Iterator[str]:
    if not model._can_set_attn_implementation():
        yield "its attention does not go through transformers' AttentionInterface"
    if getattr(model, "hf_quantizer", None) is not None:
        yield "its weights are quantised, and the quantiser's kernels have no contract"
    if getattr(model, "_use_kernels", False) or getattr(model, "use_kernels", False):
        yield "it uses kernels of the hub (use_kernels), which have no contract"
    if getattr(model, "_tp_size", None) not in (None, 1):
        yield "it is tensor-parallel, and its all-reduces add in an order of their own"
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if recurrent := sorted(kinds & set(_RECURRENT)):
        yield f"layers of kind {', '.join(recurrent)} sum chunks and single steps differently"
