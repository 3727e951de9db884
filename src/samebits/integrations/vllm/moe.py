"""Mixture of experts: router, experts and combine by samebits.ops.

vLLM picks kernels, tiles and even the router's arithmetic by the number of tokens. Here a token's
experts and its result are functions of the token.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from samebits import ops
from samebits.errors import UncoveredError
from samebits.integrations.vllm import opaque
from samebits.integrations.vllm.patches import Patches

Tensor = torch.Tensor
_PACKAGE = "vllm.model_executor.layers.fused_moe"
_ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
#: Routers whose scores are one softmax or sigmoid over all experts.
ROUTERS = frozenset({"FusedTopKRouter", "FusedTopKBiasRouter", "CPURouter"})


def install(patches: Patches, ranks: int) -> None:
    """Replaces experts and routers of the releases that have them.

    Args:
        ranks: tensor-parallel ranks, which share the experts (`expert_parallel_moe`): results are
            whole on every rank, those of shared experts too (`whole`), and nothing is left to be
            added.

    Raises:
        SwitchError: this release adds the experts' results where the plugin does not know it.
    """
    from importlib import import_module
    from importlib.util import find_spec

    method = import_module(f"{_PACKAGE}.unquantized_fused_moe_method").UnquantizedFusedMoEMethod
    patches.set(method, "is_monolithic", property(lambda self: False))
    patches.set(method, "process_weights_after_loading", _weights_ready)
    patches.set(method, "apply", _experts)
    if hasattr(method, "maybe_make_prepare_finalize"):
        patches.set(method, "maybe_make_prepare_finalize", _no_dispatch)
    for module, name in (
        ("fused_topk_router", "FusedTopKRouter"),
        ("fused_topk_bias_router", "FusedTopKBiasRouter"),
        ("cpu_router", "CPURouter"),
    ):
        if find_spec(f"{_PACKAGE}.router.{module}") is not None:
            router = getattr(import_module(f"{_PACKAGE}.router.{module}"), name)
            patches.set(router, "_compute_routing", route)
    gate = import_module(f"{_PACKAGE}.router.gate_linear").GateLinear
    patches.set(gate, "forward", _gate)
    if ranks > 1:
        runner = import_module(f"{_PACKAGE}.runner.moe_runner").MoERunner
        patches.set(runner, "_fused_output_is_reduced", property(lambda self: True))
        patches.set(runner, "_maybe_reduce_shared_expert_output", _nothing_to_add)
    # Shared experts on a second stream would share the workspaces of the first one's kernels.
    os.environ.setdefault("VLLM_DISABLE_SHARED_EXPERTS_STREAM", "1")


def whole(model: Any) -> None:
    """Has the shared experts of a loaded model return whole results on every rank.

    vLLM leaves their partial sums to one all-reduce with those of the other experts.
    """
    for layer in model.modules():
        shared = getattr(layer, "_shared_experts", None)
        if shared is not None:
            for part in shared._layer.modules():
                if hasattr(part, "reduce_results"):
                    part.reduce_results = True


def _nothing_to_add(self: Any, shared_output: Tensor | None, *_: Any, **__: Any) -> Tensor | None:
    return shared_output


def _weights_ready(self: Any, layer: Any) -> None:
    """Leaves the weights as they were loaded: no kernel of vLLM's is set up.

    Where experts lie is looked up now: a step in a CUDA graph cannot wait for it.
    """
    layer.samebits_refusal = unsupported(layer)


def _no_dispatch(self: Any, *_: Any, **__: Any) -> None:
    """No kernel of vLLM's carries tokens to other ranks' experts (asked where ranks share them)."""


def unsupported(layer: Any) -> str:
    """Why the experts of a layer cannot be computed here; "" if they can."""
    activation = getattr(layer.activation, "value", layer.activation)
    if activation not in _ACTIVATIONS:
        return f"activation {activation!r}: the experts' can be {', '.join(_ACTIVATIONS)}"
    if layer.apply_router_weight_on_input:
        return "router weights on the input of the experts"
    if getattr(layer, "w13_bias", None) is not None:
        return "biases of experts"
    if layer.expert_map is not None and layer.moe_config.skip_final_all_reduce:
        return "partial sums of experts that the model adds itself, in another order"
    if not _in_order(layer):
        return "experts that do not lie on the ranks in order, the same number on each"
    return ""


def _in_order(layer: Any) -> bool:
    """Whether every rank has as many experts, and rank r the r-th part of them."""
    places = layer.expert_map
    if places is None:
        return True
    own = layer.w13_weight.shape[0]
    first = int((places >= 0).nonzero()[0]) if bool((places >= 0).any()) else -1
    here = torch.arange(own, dtype=places.dtype, device=places.device)
    return (
        first >= 0
        and first % own == 0
        and len(places) % own == 0
        and torch.equal(places[first : first + own], here)
    )


def _experts(
    self: Any,
    layer: Any,
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    shared_experts: Any = None,
    shared_experts_input: Tensor | None = None,
) -> Tensor:
    why = layer.samebits_refusal
    if why:
        raise UncoveredError("vLLM mixture of experts", why, remedy="Use another model")
    activation = getattr(layer.activation, "value", layer.activation)
    several = layer.expert_map is not None
    return opaque.moe(
        x, layer.w13_weight, layer.w2_weight, topk_ids, topk_weights, activation, several
    )


def route(
    self: Any,
    hidden_states: Tensor,
    router_logits: Tensor,
    indices_type: torch.dtype | None,
    *,
    input_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """vLLM's ``_compute_routing`` of a router: each token's experts, and their weights."""
    bias, scoring = getattr(self, "e_score_correction_bias", None), self.scoring_func
    special = (
        getattr(self, "use_grouped_topk", False)
        or getattr(self, "custom_routing_function", None) is not None
        or getattr(self, "_hash_indices_table", None) is not None
        or scoring not in ("softmax", "sigmoid")
    )
    if special:
        raise UncoveredError(
            "vLLM router", "experts are chosen by groups, tables or a function of the model's own",
            remedy="Use a model whose router is a softmax or sigmoid over all experts",
        )  # fmt: skip
    weights, ids = ops.router_topk(
        router_logits, self.top_k, renormalize=self.renormalize, scoring=scoring,
        bias=None if bias is None else bias.to(router_logits.dtype),
    )  # fmt: skip
    factor = float(getattr(self, "routed_scaling_factor", 1.0) or 1.0)
    if factor != 1.0:
        weights = weights * factor
    return weights, ids if indices_type is None else ids.to(indices_type)


def _gate(self: Any, x: Tensor) -> Any:
    wide = self.out_dtype is torch.float32
    bias = None if self.skip_bias_add else self.bias
    y = opaque.linear(x.to(self.weight.dtype), self.weight, bias, wide=wide)
    if self.out_dtype is not None:
        y = y.to(self.out_dtype)
    if not getattr(self, "return_bias", True):
        return y
    return y, (self.bias if self.skip_bias_add else None)
