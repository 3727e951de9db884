"""The reasons to refuse a loaded model: layers whose kernels are vLLM's own.

What is written in torch operations is the switch's business, which covers or refuses each of them
as it runs. Here only vLLM's kernels matter, which the switch cannot see.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from samebits.integrations.vllm import moe

#: Registered layers that compute by samebits.ops, in torch operations, or nothing.
COVERED = frozenset(
    {
        "MoERunner", "apply_rotary_emb", "column_parallel_linear", "gate_linear", "gelu",
        "gelu_and_mul", "gelu_fast", "gelu_new", "gemma_rms_norm", "layer_norm",
        "logits_processor", "modular_fused_moe", "parallel_lm_head", "quick_gelu", "relu2",
        "replicated_linear", "rms_norm", "rotary_embedding", "routed_experts",
        "row_parallel_linear", "silu_and_mul", "unquantized_fused_moe",
        "vocab_parallel_embedding",
    }
)  # fmt: skip
_METHODS = frozenset(
    {"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod", "UnquantizedFusedMoEMethod"}
)
#: What the attention of every device derives from; importing it would import vLLM.
_ATTENTION = "SamebitsImpl"


def reasons(model: Any) -> list[str]:
    """Why a model cannot be promised anything; each reason once, with a layer that has it."""
    found: dict[str, list[str]] = {}
    for name, layer in model.named_modules():
        for reason in _of_layer(layer):
            found.setdefault(reason, []).append(name or type(layer).__name__)
    return [
        f"{reason} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
        for reason, names in found.items()
    ]


def _of_layer(layer: Any) -> list[str]:
    kind, found = type(layer).__name__, []
    registered = _registered_name(layer)
    if registered is not None and registered not in COVERED:
        found.append(f"{kind}: no contract covers vLLM's kernels for it")
    method = getattr(layer, "quant_method", None)
    if method is not None and type(method).__name__ not in _METHODS:
        found.append(f"{type(method).__name__}: quantised weights")
    implementation = getattr(layer, "impl", None)
    if hasattr(layer, "attn_backend") and implementation is not None:
        bases = [base.__name__ for base in type(implementation).__mro__]
        if _ATTENTION not in bases:
            found.append(f"{kind} on {bases[0]}: not the backend of samebits")
    router = type(getattr(layer, "router", None)).__name__
    if router.endswith("Router") and router not in moe.ROUTERS:
        found.append(f"{router}: its choice of experts has no contract")
    if hasattr(layer, "w13_weight"):
        why = moe.unsupported(layer)
        if why:
            found.append(f"{kind}: {why}")
    return found


def _registered_name(layer: Any) -> str | None:
    """The name under which vLLM registered a layer's class as replaceable."""
    if not any(base.__name__ in ("CustomOp", "PluggableLayer") for base in type(layer).__mro__):
        return None
    name = getattr(type(layer), "name", None)
    return name if isinstance(name, str) else type(layer).__name__


def summary(model: Any, decides: dict[str, str]) -> str:
    """One line of what is in force."""
    kinds = Counter(filter(None, map(_registered_name, model.modules())))
    layers = ", ".join(f"{n} {name}" for name, n in sorted(kinds.items()))
    return "; ".join((*(f"{k} {v}" for k, v in decides.items()), layers))
