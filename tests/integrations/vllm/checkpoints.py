"""Small random models in the format of the hub, for engines that load one from a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HIDDEN, HEADS, KV_HEADS, HEAD, VOCABULARY, LAYERS = 256, 4, 2, 64, 512, 2
INNER = 1024
_COMMON: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "num_hidden_layers": LAYERS, "head_dim": HEAD,
    "vocab_size": VOCABULARY, "max_position_embeddings": 2048, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "bos_token_id": 1,
    "eos_token_id": 2, "initializer_range": 0.02, "attention_dropout": 0.0, "use_cache": True,
}  # fmt: skip
#: Kinds with biases of q, k and v, and without norms of q and k.
_BIASED = ("qwen2", "qwen2_moe")
KINDS: dict[str, dict[str, Any]] = {
    # Norms of q and k, lm_head tied to the embedding.
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True,
        "attention_bias": False,
    },
    # Biases of q, k and v, an lm_head of its own.
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": False,
    },
    # Eight experts, two for a token.
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "tie_word_embeddings": False, "attention_bias": False, "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.0,
        "output_router_logits": False,
    },
    # The same, and an expert with a gate that every token passes through.
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe",
        "tie_word_embeddings": False, "qkv_bias": True, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 128, "shared_expert_intermediate_size": 512,
        "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "router_aux_loss_coef": 0.0, "output_router_logits": False,
    },
}  # fmt: skip


def write(kind: str, folder: Path, **changes: Any) -> Path:
    """Writes a checkpoint of one of `KINDS`; the same weights every time.

    Args:
        changes: entries of the configuration; of sizes the hidden one and the numbers of heads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = _COMMON | KINDS[kind] | changes
    tensors = _tensors(kind, config)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def _tensors(kind: str, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    noise = torch.Generator().manual_seed(7)
    found: dict[str, torch.Tensor] = {}
    hidden, queries = config["hidden_size"], config["num_attention_heads"]
    keys = config["num_key_value_heads"]

    def matrix(name: str, out: int, into: int, scale: float = 1.5) -> None:
        w = torch.randn(out, into, generator=noise) * scale * into**-0.5
        found[name + ".weight"] = w.to(torch.bfloat16)

    def vector(name: str, size: int, middle: float) -> None:
        found[name] = (middle + 0.2 * torch.randn(size, generator=noise)).to(torch.bfloat16)

    # Of a larger one, tied to the lm_head, every token would be its own successor.
    tied = config["tie_word_embeddings"]
    matrix("model.embed_tokens", VOCABULARY, hidden, 3 if tied else hidden**0.5)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        vector(f"{layer}.input_layernorm.weight", hidden, 1)
        vector(f"{layer}.post_attention_layernorm.weight", hidden, 1)
        for name, heads in (("q", queries), ("k", keys), ("v", keys)):
            matrix(f"{layer}.self_attn.{name}_proj", heads * HEAD, hidden)
            if kind in _BIASED:
                vector(f"{layer}.self_attn.{name}_proj.bias", heads * HEAD, 0)
        matrix(f"{layer}.self_attn.o_proj", hidden, queries * HEAD)
        if kind not in _BIASED:
            vector(f"{layer}.self_attn.q_norm.weight", HEAD, 1)
            vector(f"{layer}.self_attn.k_norm.weight", HEAD, 1)
        mlps = {f"{layer}.mlp": INNER}
        if kind.endswith("_moe"):
            matrix(f"{layer}.mlp.gate", config["num_experts"], hidden)
            inner = config["moe_intermediate_size"]
            mlps = {f"{layer}.mlp.experts.{e}": inner for e in range(config["num_experts"])}
        if kind == "qwen2_moe":
            matrix(f"{layer}.mlp.shared_expert_gate", 1, hidden)
            mlps[f"{layer}.mlp.shared_expert"] = config["shared_expert_intermediate_size"]
        for mlp, inner in mlps.items():
            matrix(f"{mlp}.gate_proj", inner, hidden)
            matrix(f"{mlp}.up_proj", inner, hidden)
            matrix(f"{mlp}.down_proj", hidden, inner)
    vector("model.norm.weight", hidden, 1)
    if not config["tie_word_embeddings"]:
        matrix("lm_head", VOCABULARY, hidden, 3)
    return found


def write_adapter(folder: Path, seed: int, rank: int = 8) -> Path:
    """A low-rank adapter of q, v, o and the MLP's products, for the dense models."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = torch.Generator().manual_seed(seed)
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD), "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
    }  # fmt: skip
    found = {}
    for i in range(LAYERS):
        for name, (out, into) in shapes.items():
            stem = f"base_model.model.model.layers.{i}.{name}"
            a = torch.randn(rank, into, generator=noise) * into**-0.5
            b = torch.randn(out, rank, generator=noise) * rank**-0.5
            found[f"{stem}.lora_A.weight"] = a.to(torch.bfloat16)
            found[f"{stem}.lora_B.weight"] = b.to(torch.bfloat16)
    names = sorted({name.rpartition(".")[2] for name in shapes})
    (folder / "adapter_config.json").write_text(
        json.dumps({
            "peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": names,
            "bias": "none", "task_type": "CAUSAL_LM",
        })
    )  # fmt: skip
    save_file(found, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    return folder


def write_tiny(folder: Path) -> Path:
    """The bundled model in bf16: a Llama, under the hub's names."""
    from samebits.models import tiny

    model = tiny.load()
    c, names = model.config, {
        "embed": "model.embed_tokens", "head": "lm_head", "norm": "model.norm",
        "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
        "attention.q": "self_attn.q_proj", "attention.k": "self_attn.k_proj",
        "attention.v": "self_attn.v_proj", "attention.out": "self_attn.o_proj",
        "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
    }  # fmt: skip
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": c.width,
        "intermediate_size": c.hidden, "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads, "num_hidden_layers": c.layers,
        "head_dim": c.head_size, "vocab_size": c.vocab, "rope_theta": c.rope_base,
        "max_position_embeddings": c.max_positions, "rms_norm_eps": c.norm_eps,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    found = {}
    for name, tensor in model.state_dict().items():
        stem, layer = name.removesuffix(".weight"), ""
        if stem.startswith("layers."):
            number, _, stem = stem.removeprefix("layers.").partition(".")
            layer = f"model.layers.{number}."
        found[f"{layer}{names[stem]}.weight"] = tensor.to(torch.bfloat16).clone()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(found, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder
