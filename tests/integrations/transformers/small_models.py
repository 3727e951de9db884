"""Small models with random weights, one of each kind, and how to run them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

VOCABULARY = 97
PAD = 0
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
    "max_position_embeddings": 512, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
WINDOW = 8


def config(kind: str) -> Any:
    import transformers as t

    if kind == "llama":
        return t.LlamaConfig(**_SIZES)
    if kind == "qwen3":
        return t.Qwen3Config(**_SIZES)
    if kind == "gemma2":  # layers with and without a window, capped scores
        return t.Gemma2Config(
            **_SIZES, sliding_window=WINDOW, query_pre_attn_scalar=12, attn_logit_softcapping=20.0,
            layer_types=["sliding_attention", "full_attention"],
        )  # fmt: skip
    if kind == "mistral":  # a window in every layer
        return t.MistralConfig(**_SIZES, sliding_window=WINDOW)
    if kind == "mixtral":
        return t.MixtralConfig(
            **_SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
        )
    if kind == "gpt_oss":  # sinks, a window, experts with biases and a gate of their own
        return t.GptOssConfig(
            **_SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"],
        )  # fmt: skip
    if kind == "deepseek_v3":  # keys and values of different sizes, groups of experts
        sizes = {name: n for name, n in _SIZES.items() if name != "head_dim"}
        return t.DeepseekV3Config(
            **(sizes | {"num_key_value_heads": 4}), n_routed_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=32, n_group=2, topk_group=1, q_lora_rank=16, kv_lora_rank=16,
            qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12, first_k_dense_replace=1,
        )  # fmt: skip
    raise KeyError(kind)


DECODERS = ("llama", "qwen3", "gemma2", "mistral", "mixtral", "gpt_oss", "deepseek_v3")


def decoder(kind: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    """A causal language model in evaluation mode, with stock attention."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config(kind), dtype=dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    return model.eval().requires_grad_(False)


def encoder(dtype: torch.dtype = torch.float32) -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(7)
    sizes = dict(_SIZES)
    for name in ("num_key_value_heads", "head_dim", "bos_token_id", "eos_token_id"):
        sizes.pop(name)
    return BertModel(BertConfig(**sizes), add_pooling_layer=False).to(dtype).eval()


def prompts(lengths: Sequence[int], seed: int = 3) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def pad(rows: Sequence[Sequence[int]], side: str) -> dict[str, torch.Tensor]:
    """input_ids and attention_mask [B, longest]."""
    longest = max(map(len, rows))
    ids, seen = [], []
    for row in rows:
        gap, ones = [PAD] * (longest - len(row)), [1] * len(row)
        zeros = [0] * len(gap)
        ids.append([*gap, *row] if side == "left" else [*row, *gap])
        seen.append([*zeros, *ones] if side == "left" else [*ones, *zeros])
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(seen)}


def past(model: Any, cache: Any) -> dict[str, Any]:
    """A cache under the name that this release of transformers gives it."""
    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


def positions(attention_mask: torch.Tensor) -> torch.Tensor:
    return (attention_mask.cumsum(1) - 1).clamp(min=0)
