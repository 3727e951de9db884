"""Linear layers, embeddings, norms, activations and rotary embedding of vLLM, by samebits.ops.

Methods are replaced on vLLM's classes, so that subclasses, wrappers (LoRA) and modules that
imported a class by name all get them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from samebits import ops
from samebits.contract.tree import LEAF_EDGE
from samebits.errors import ShapeError, UncoveredError
from samebits.integrations.vllm import opaque
from samebits.integrations.vllm.patches import Patches
from samebits.plan import contract_of
from samebits.plan.models import shared_leaves

Tensor = torch.Tensor


def install(patches: Patches, shared_tree: bool, keep_weights: bool) -> None:
    """Replaces the layers.

    Args:
        shared_tree: row-parallel products have the tree that all tensor-parallel sizes share.
        keep_weights: weights are read as they were loaded, too: receipts name their hashes.
    """
    from vllm.model_executor.layers import activation, layernorm, linear, rotary_embedding
    from vllm.model_executor.layers import vocab_parallel_embedding as vocabulary

    opaque.define()
    ready = _kept if keep_weights else _weights_ready
    for method in (linear.UnquantizedLinearMethod, vocabulary.UnquantizedEmbeddingMethod):
        patches.set(method, "process_weights_after_loading", ready)
        patches.set(method, "apply", _apply)
    if shared_tree:
        patches.set(linear.RowParallelLinear, "forward", _row_parallel)
        patches.set(vocabulary.VocabParallelEmbedding, "forward", _vocabulary_parallel)
    patches.set(layernorm.RMSNorm, "forward", _rms_norm)
    patches.set(layernorm.GemmaRMSNorm, "forward", _gemma_rms_norm)
    patches.set(activation.SiluAndMul, "forward", _silu_and_mul)
    patches.set(activation.GeluAndMul, "forward", _gelu_and_mul)
    patches.set(rotary_embedding.RotaryEmbedding, "forward", _rotary)
    for name in ("GELU", "NewGELU", "FastGELU", "QuickGELU", "ReLUSquaredActivation"):
        if hasattr(activation, name):
            patches.set(getattr(activation, name), "forward", _native)
    patches.set(rotary_embedding.MRotaryEmbedding, "forward", _native)


def _native(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The form in torch operations, which the switch covers."""
    return self.forward_native(*args, **kwargs)


# ---- products ------------------------------------------------------------------------------------


def _kept(self: Any, layer: Any) -> None:
    """`_weights_ready`, and the parameter keeps its memory."""
    weight = layer.weight.data
    _weights_ready(self, layer)
    layer.weight.data = weight


def _weights_ready(self: Any, layer: Any) -> None:
    """Settles a weight's tree, and on a CPU lays the weight out for many products.

    The weight is kept as a plain tensor beside vLLM's parameter, whose class makes every operation
    on it pass through Python. Where nothing else reads the parameter it gives up its memory, as it
    does in vLLM, which packs weights on a CPU too.

    Raises:
        ShapeError: ranks cannot share a tree over the K of a row-parallel layer.
    """
    if type(layer).forward is _row_parallel:  # now, and not at the first request
        shared_parts(layer.input_size, layer.tp_size)
    layer.samebits_weight = weight = layer.weight.data
    layer.samebits_tree = tree_of_whole(layer)
    layer.samebits_packed = None
    if weight.is_cpu and _only_multiplies(layer):
        layer.samebits_packed = ops.pack_weight(weight)
        layer.samebits_weight = layer.weight.data = weight.new_empty(0)


def follow(model: Any) -> None:
    """Has products of a loaded model follow what ``load_weights`` writes to its parameters later,
    as far as they still hold memory. (vLLM's ``reload_weights`` calls `_weights_ready` again.)"""
    load = model.load_weights

    @functools.wraps(load)
    def load_weights(*args: Any, **kwargs: Any) -> Any:
        result = load(*args, **kwargs)
        for layer in model.modules():
            here = getattr(layer, "samebits_packed", None) is not None and layer.weight.is_cpu
            if here and layer.weight.numel():
                layer.samebits_packed = ops.pack_weight(layer.weight.data)
        return result

    model.load_weights = load_weights


def _only_multiplies(layer: Any) -> bool:
    """Whether nothing but `_apply` reads a weight: no lookup of rows, no forward of ours."""
    from vllm.model_executor.layers.linear import LinearBase

    ours = type(layer).forward.__module__.startswith("samebits.")
    return isinstance(layer, LinearBase) and not ours


def tree_of_whole(layer: Any) -> str:
    """The tree of a column-parallel layer's whole weight, "" where it is the weight's at hand.

    A tree is a function of the global shape: a rank's rows keep it, however few they are.
    """
    ranks, weight = getattr(layer, "tp_size", 1), layer.weight
    if ranks == 1 or not weight.is_cuda:
        return ""
    n = global_features(layer)
    return str(
        contract_of("linear", n=n, k=weight.shape[1], dtype=weight.dtype, device="sm_90").tree
    )


def global_features(layer: Any) -> int:
    """Output features of a layer on all ranks together, each counted once.

    K and V heads may be copied to several ranks; the whole weight has them once.
    """
    heads = getattr(layer, "total_num_kv_heads", None)
    if heads is not None:
        sizes = layer.head_size, getattr(layer, "v_head_size", layer.head_size)
        return int(layer.total_num_heads * sizes[0] + heads * sum(sizes))
    if hasattr(layer, "num_embeddings_padded"):
        return int(layer.num_embeddings_padded)
    return int(layer.output_size)


def _apply(self: Any, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
    packed = layer.samebits_packed
    if packed is None and layer.samebits_weight.is_cpu:  # an embedding that is multiplied with, too
        packed = layer.samebits_packed = ops.pack_weight(layer.samebits_weight)
    if packed is not None:
        return opaque.linear_packed(x, packed, bias)
    return opaque.linear(x, layer.samebits_weight, bias, layer.samebits_tree)


def shared_parts(k: int, ranks: int = 1) -> int:
    """Leaves of a row-parallel product over K in all: a function of K alone.

    Raises:
        ShapeError: K cannot be cut at multiples of 128 into equal parts, two or one for each rank.
    """
    parts = shared_leaves(k)
    if not parts or parts % ranks:
        raise ShapeError(
            f"K = {k} of a row-parallel layer is no multiple of {max(2, ranks) * LEAF_EDGE}: "
            f"{ranks} ranks have no tree in common with other numbers of them"
        )
    return parts


def _row_parallel(self: Any, x: Tensor) -> Any:
    if not self.input_is_parallel:
        x = x.chunk(self.tp_size, -1)[self.tp_rank]
    if not self.reduce_results and self.tp_size > 1:
        raise UncoveredError(
            self.prefix, "partial sums leave the layer and are added elsewhere, in another order",
            remedy="Run this model on one tensor-parallel rank",
        )  # fmt: skip
    bias = None if self.skip_bias_add else self.bias
    parts = shared_parts(self.input_size, self.tp_size)
    y = ops.row_parallel_linear(x, self.samebits_weight, bias, parts=parts, group=_group(self))
    if not self.return_bias:
        return y
    return y, (self.bias if self.skip_bias_add else None)


def _group(layer: Any) -> Any:
    if layer.tp_size == 1:
        return "alone"
    from vllm.distributed import get_tp_group

    return get_tp_group().device_group


def _vocabulary_parallel(self: Any, ids: Tensor) -> Tensor:
    """A rank's rows of the embedding; ids of other ranks are -0, which adds nothing to any row."""
    if self.tp_size == 1:
        rows: Tensor = self.quant_method.embedding(self, ids.long())
        return rows
    from vllm.distributed import tensor_model_parallel_all_reduce
    from vllm.model_executor.layers import vocab_parallel_embedding as vocabulary

    own = self.shard_indices
    local, elsewhere = vocabulary.get_masked_input_and_mask(
        ids, own.org_vocab_start_index, own.org_vocab_end_index, own.num_org_vocab_padding,
        own.added_vocab_start_index, own.added_vocab_end_index,
    )  # fmt: skip
    rows = self.quant_method.embedding(self, local.long())
    rows = rows.masked_fill(elsewhere.unsqueeze(-1), -0.0)
    # One term of each sum is a row and the others are -0: exact in any order.
    result: Tensor = tensor_model_parallel_all_reduce(rows)
    return result


# ---- rows and elements ---------------------------------------------------------------------------


def _rms_norm(self: Any, x: Tensor, residual: Tensor | None = None) -> Any:
    weight = self.weight if self.has_weight else None
    if self.variance_size_override is not None:
        return self.forward_native(x, residual)
    return _norm(x, residual, weight, self.variance_epsilon)


def _gemma_rms_norm(self: Any, x: Tensor, residual: Tensor | None = None) -> Any:
    return _norm(x, residual, self.weight.float() + 1.0, self.variance_epsilon)


def _norm(x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float) -> Any:
    if residual is None:
        return opaque.rms_norm(x, weight, eps)
    return opaque.add_rms_norm(x, residual, weight, eps)


def _silu_and_mul(self: Any, x: Tensor) -> Tensor:
    return opaque.gated(x, "silu")


def _gelu_and_mul(self: Any, x: Tensor) -> Tensor:
    return opaque.gated(x, "gelu_tanh" if self.approximate == "tanh" else "gelu")


def _rotary(
    self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None, *others: Any
) -> tuple[Tensor, Tensor | None]:
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    if type(self).forward_native is not RotaryEmbedding.forward_native:
        result: tuple[Tensor, Tensor | None] = self.forward_native(positions, query, key, *others)
        return result
    cache, crossed = self._match_cos_sin_cache_dtype(query), not self.is_neox_style
    positions = positions.flatten()
    if key is not None and not crossed and cache.shape[1] == self.head_size and query.dim() == 2:
        return opaque.rotary_qk(query, key, cache, positions, self.head_size)
    query = opaque.rotary(query, cache, positions, self.head_size, crossed)
    if key is not None:
        key = opaque.rotary(key, cache, positions, self.head_size, crossed)
    return query, key


# ---- several of them in one launch ---------------------------------------------------------------

#: Attention modules of vLLM that norm the heads of queries and keys and then turn them.
_NORMED_HEADS = frozenset({"Qwen3Attention", "Qwen3MoeAttention"})


def fuse(patches: Patches, model: Any) -> None:
    """Gives attention modules of a loaded model a forward of fewer launches with the same bits."""
    for kind in {type(m) for m in model.modules() if type(m).__name__ in _NORMED_HEADS}:
        if not hasattr(kind.forward, "samebits"):
            patches.set(kind, "forward", _normed_attention(kind.forward))


def _normed_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """Projection, norms and rotary embedding in one, attention, projection."""
        norms, rope = (self.q_norm, self.k_norm), self.rotary_emb
        if not _usual(rope, self.head_dim, *norms) or positions.dim() != 1:
            result: Tensor = original(self, positions, hidden_states)
            return result
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], -1)
        q, k = heads_ready(self, positions, q, k)
        output: Tensor = self.o_proj(self.attn(q, k, v))[0]
        return output

    forward.samebits = True  # type: ignore[attr-defined]
    return forward


def heads_ready(attention: Any, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys [T, heads * D] of an attention module that `fuse` knows: normed, turned."""
    rope, q_norm, k_norm = attention.rotary_emb, attention.q_norm, attention.k_norm
    return opaque.rotary_qk(
        q, k, rope._match_cos_sin_cache_dtype(q), positions, attention.head_dim,
        q_norm.weight, k_norm.weight, q_norm.variance_epsilon,
    )  # fmt: skip


def fused(attention: Any) -> bool:
    """Whether a module's norms and rotary embedding run in one launch."""
    return hasattr(type(attention).forward, "samebits") and _usual(
        attention.rotary_emb, attention.head_dim, attention.q_norm, attention.k_norm
    )


def _usual(rope: Any, head: int, *norms: Any) -> bool:
    """Whether a whole head turns by vLLM's plain rule, after norms with weights and one epsilon."""
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    return (
        type(rope).forward_native is RotaryEmbedding.forward_native
        and rope.is_neox_style
        and rope.rotary_dim == head
        and all(type(n) is RMSNorm and n.has_weight for n in norms)
        and all(n.variance_size_override is None for n in norms)
        and len({n.variance_epsilon for n in norms}) == 1
    )
