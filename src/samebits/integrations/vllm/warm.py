"""Kernels that a server will need are compiled when it starts, several at a time.

vLLM's own dry runs meet the kernels of a full step and of captured batches, one after the other.
Here are the calls of every step: each kind of layer with every number of rows that has kernels of
its own, attention of requests of all kinds in company, draws with every filter, logarithms of
probabilities. Triton compiles a kernel for each class of arguments, and vLLM warns of each that it
meets late, compiled or read from Triton's cache. Adapters, and what ranks do together, are left
out: ranks miss different kernels, and must not wait for each other.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from samebits import ops
from samebits.engines.ahead import compile_ahead
from samebits.engines.schedule import BUCKETS
from samebits.integrations.vllm import layers, moe
from samebits.ops.parallel.linear import subtree

log = logging.getLogger("vllm.samebits")
Call = Callable[[], object]
Tensor = torch.Tensor
#: A step's requests as (new tokens, keys).
Step = tuple[tuple[int, int], ...]
#: Rows of prompts whose logarithms of probabilities vLLM computes at a time.
_PROMPT = 1024


@dataclass(frozen=True)
class Limits:
    """Of one step: new tokens, requests, keys of a request; tokens of a page; rows of logits."""

    tokens: int
    requests: int
    keys: int
    page: int = 64
    drawn: int = 0

    @property
    def rows(self) -> int:
        """Rows that are drawn from at most: of each request one, and one for each draft."""
        return self.drawn or self.requests


def warm_up(worker: Any) -> None:
    """Compiles what the model of a worker will need: loaded, its pages' length settled, not run."""
    config, model = worker.vllm_config, worker.model_runner.get_model()
    scheduler, size = config.scheduler_config, config.model_config.get_vocab_size()
    device, drafts = torch.device(worker.device), config.speculative_config
    limits = Limits(
        tokens=min(scheduler.max_num_batched_tokens, BUCKETS[-1]),
        requests=scheduler.max_num_seqs,
        keys=config.model_config.max_model_len,
        page=config.cache_config.block_size,
        drawn=scheduler.max_num_seqs * (1 + getattr(drafts, "num_speculative_tokens", 0)),
    )
    # The second runner draws from the model's own logits.
    second = getattr(config, "use_v2_model_runner", False)
    logits = config.model_config.dtype if second else torch.float32
    width, dtype = config.model_config.get_hidden_size(), config.model_config.dtype
    calls = [
        *products(model, limits), *experts(model, limits), *attention(model, limits, device),
        *elements(model, limits, torch.empty(0, width, dtype=dtype, device=device)),
        *draws(torch.empty(0, size, dtype=logits, device=device), limits),
    ]  # fmt: skip
    ranks = config.parallel_config.tensor_parallel_size
    threads = max(1, min(16, (os.cpu_count() or 1) // ranks))
    with torch.inference_mode():
        for error in dict.fromkeys(map(str, compile_ahead(calls, threads))):
            log.warning("samebits: calls were not warmed up: %s", error)


def rows(most: int) -> list[int]:
    """Numbers of rows that need kernels of their own, up to `most`.

    Triton compiles one kernel for one row, one for multiples of 16 and one for others.
    """
    edges = [edge for edge in BUCKETS if edge <= most]
    return sorted({*edges, *(edge - 1 for edge in edges if edge > 16), most, max(1, most - 1)})


def products(model: Any, limits: Limits) -> Iterator[Call]:
    """One call for each kind of layer and number of rows; of lm_head as many as are drawn from, or
    as vLLM takes of a prompt at a time. Of a product that ranks add up, this rank's part."""
    seen, most = set(), max(limits.rows, _PROMPT)
    for layer in model.modules():
        weight = getattr(layer, "samebits_weight", None)
        if weight is None:
            continue
        head = hasattr(layer, "num_embeddings")
        bias = None if getattr(layer, "skip_bias_add", False) else getattr(layer, "bias", None)
        kind = (_adds(layer), head, weight.shape, layer.samebits_tree, bias is None)
        if kind not in seen:
            seen.add(kind)
            row = weight.new_zeros((1, weight.shape[1]))
            for count in rows(min(limits.tokens, most) if head else limits.tokens):
                yield _product(layer, row.expand(count, -1), bias)


def experts(model: Any, limits: Limits) -> Iterator[Call]:
    """One call for each kind of mixture, where one rank has all experts, and number of rows."""
    seen = set()
    for layer in model.modules():
        w = getattr(layer, "w13_weight", None)
        if w is not None and layer.expert_map is None and w.shape not in seen:
            seen.add(w.shape)
            for count in rows(limits.tokens):
                yield _mixture(layer, w.new_zeros((1, w.shape[2])).expand(count, -1))
        router, all_of_it = getattr(layer, "router", None), getattr(layer, "routed_experts", None)
        if hasattr(router, "top_k") and all_of_it is not None and type(router) not in seen:
            seen.add(type(router))
            w, many = all_of_it.w13_weight, all_of_it.global_num_experts
            kind = all_of_it.moe_config.router_logits_dtype
            for count in rows(limits.tokens):
                yield _routing(router, w.new_zeros((count, many), dtype=kind))


def _mixture(layer: Any, row: Tensor) -> Call:
    count, chosen = row.shape[0], layer.top_k

    def call() -> None:
        ids = torch.arange(count * chosen, device=row.device).view(count, chosen)
        weights = torch.ones((count, chosen), dtype=torch.float32, device=row.device)
        activation = getattr(layer.activation, "value", layer.activation)
        ids = ids % layer.w13_weight.shape[0]
        ops.moe(
            row.contiguous(), layer.w13_weight, layer.w2_weight, ids, weights,
            activation=activation,
        )  # fmt: skip

    return call


def _routing(router: Any, logits: Tensor) -> Call:
    return lambda: moe.route(router, logits, logits, None)


def _adds(layer: Any) -> bool:
    return hasattr(layer, "reduce_results")


def _product(layer: Any, row: Tensor, bias: Tensor | None) -> Call:
    if _adds(layer) and layer.tp_size > 1:
        weight, ranks = layer.samebits_weight, layer.tp_size
        leaves = layers.shared_parts(weight.shape[1] * ranks) // ranks
        return lambda: subtree(row.contiguous(), weight, leaves)
    if _adds(layer) or hasattr(layer, "out_dtype"):  # the gate of a mixture of experts
        return lambda: layer(row.contiguous())
    return lambda: layer.quant_method.apply(layer, row.contiguous(), bias)


def elements(model: Any, limits: Limits, like: Tensor) -> Iterator[Call]:
    """One call for each kind of norm, gate and rotary embedding, and number of rows.

    Args:
        like: [0, hidden size], of the model's dtype and device.
    """
    seen: set[Any] = set()
    for layer in model.modules():
        for kind, width, call in _of_rows(layer, like.shape[1]):
            if kind not in seen:
                seen.add(kind)
                for count in rows(limits.tokens):
                    yield partial(_called, call, like, count, width)


def _called(call: Callable[[Tensor], object], like: Tensor, count: int, width: int) -> None:
    call(like.new_zeros((count, width)))


def _of_rows(layer: Any, hidden: int) -> Iterator[tuple[Any, int, Callable[[Tensor], object]]]:
    """Calls that a module makes for rows, each with what is the same for all of its kind, and the
    width of a row."""
    norm = type(layer).__name__ in ("RMSNorm", "GemmaRMSNorm")
    if norm and layer.weight.shape == (hidden,):
        yield (type(layer), None), hidden, layer
        yield (type(layer), "residual"), hidden, lambda x: layer(x, torch.zeros_like(x))
    both = getattr(getattr(layer, "gate_up_proj", None), "samebits_weight", None)
    if both is not None and hasattr(layer, "act_fn"):
        yield (type(layer.act_fn), len(both)), len(both), layer.act_fn
    if all(hasattr(layer, name) for name in ("qkv_proj", "rotary_emb", "q_size", "kv_size")):
        sizes = layer.q_size, layer.kv_size, layer.kv_size
        yield (type(layer), sizes), sum(sizes), partial(_turned, layer, sizes)


def _turned(layer: Any, sizes: tuple[int, ...], x: Tensor) -> object:
    q, k, _ = torch.split(x, list(sizes), -1)
    positions = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    if layers.fused(layer):
        return layers.heads_ready(layer, positions, q, k)
    return layer.rotary_emb(positions, q, k)


def steps(limits: Limits, group: int = 1) -> Iterator[Step]:
    """Steps of all kinds within the limits: prompts, chunks, drafts and decoding, of few requests
    and many, with few keys and many; and mixtures.

    Args:
        group: query heads of a KV head. A schedule goes by the rows of all of them, so that each
            of its buckets needs a request.
    """
    counts = [n for i in range(16) for n in (1 << i, 3 << i) if n <= limits.requests]
    lengths = [n for n in (300 << i for i in range(16)) if n < limits.keys]
    most = min(limits.tokens, limits.keys)
    tokens = {1, 20, 100, 500, 700, 1200, 2000, *(edge // group for edge in BUCKETS)} - {0}
    for new in sorted(n for n in tokens if n <= most):
        for keys in (new, *(n for n in lengths if n > new), limits.keys):
            for count in counts:
                if count * new <= limits.tokens:
                    yield ((new, keys),) * count
        # One long request among many short ones: a grid is as large as if all were long.
        others = min(limits.requests - 1, (limits.tokens - new) // 2)
        yield ((2, 2),) * others + ((new, new),)
        yield ((2, limits.keys),) * others + ((new, limits.keys),)
    for last in (((200, 200),), ((200, 900),) * 2):
        step = ((1, 300),) * 5 + last
        if len(step) <= limits.requests and limits.keys >= 900 and limits.tokens >= 405:
            yield step


def attention(model: Any, limits: Limits, device: torch.device) -> Iterator[Call]:
    """Calls of `steps` for each kind of attention of a model.

    All keys lie in one page: which, does not matter to a kernel.
    """
    from samebits.integrations.vllm.attention_gpu import GpuMetadata, parts

    seen = set()
    for layer in model.modules():
        impl: Any = getattr(layer, "impl", None)
        if not hasattr(impl, "attend"):
            continue
        kind = (impl.num_heads, impl.num_kv_heads, impl.head_size, impl.kv_cache_dtype)
        kind += tuple(impl.options[name] is not None for name in ("window", "softcap", "sinks"))
        if kind in seen:
            continue
        seen.add(kind)
        for step in steps(limits, impl.num_heads // impl.num_kv_heads):
            common = _common(step, -(-limits.keys // limits.page), device)
            metadata = GpuMetadata(common.num_actual_tokens, parts(common), True)
            yield _attention(layer, metadata, limits.page, device)
        for count in rows(limits.tokens):
            yield _stored(layer, count, limits.page, device)


def _common(step: tuple[tuple[int, int], ...], pages: int, device: torch.device) -> Any:
    """vLLM's ``CommonAttentionMetadata`` of a step, its fields that are read.

    The host says how many keys there are, which chooses kernels; the device knows of no old ones,
    so that little is computed.
    """
    new, keys = (torch.tensor(x, dtype=torch.int32) for x in zip(*step, strict=True))
    offsets = torch.cat((new.new_zeros(1), new.cumsum(0, dtype=torch.int32)))
    return SimpleNamespace(
        num_actual_tokens=int(offsets[-1]), num_reqs=len(step), max_query_len=int(new.max()),
        query_start_loc=offsets.to(device), query_start_loc_cpu=offsets,
        seq_lens=new.to(device), seq_lens_cpu_upper_bound=keys, causal=True,
        block_table_tensor=torch.zeros((len(step), pages), dtype=torch.int32, device=device),
    )  # fmt: skip


def _attention(layer: Any, step: Any, page: int, device: torch.device) -> Call:
    impl, tokens = layer.impl, step.tokens

    def call() -> None:
        query, out = (_heads(layer, tokens, impl.num_heads, device) for _ in "qo")
        key, value = (_heads(layer, tokens, impl.num_kv_heads, device) for _ in "kv")
        impl.attend(layer, query, key, value, _cache(layer, page, device), step, out)

    return call


def _stored(layer: Any, tokens: int, page: int, device: torch.device) -> Call:
    """Keys and values as they come out of a projection, beside queries, and nowhere to go."""
    impl = layer.impl
    kv = impl.num_kv_heads

    def call() -> None:
        key = _heads(layer, tokens, kv, device)
        value = _heads(layer, tokens, impl.num_heads + 2 * kv, device)[:, -kv:]
        slots = torch.full((tokens,), -1, dtype=torch.int64, device=device)
        impl.do_kv_cache_update(layer, key, value, _cache(layer, page, device), slots)

    return call


def _heads(layer: Any, tokens: int, heads: int, device: torch.device) -> Tensor:
    return torch.zeros((tokens, heads, layer.impl.head_size), dtype=layer.dtype, device=device)


def _cache(layer: Any, page: int, device: torch.device) -> Tensor:
    """A cache of one page."""
    shape = 1, layer.impl.num_kv_heads, page, 2 * layer.impl.head_size
    if layer.impl.fp8:
        return torch.zeros(shape, dtype=torch.uint8, device=device)
    return torch.zeros(shape, dtype=layer.dtype, device=device)


def draws(like: Tensor, limits: Limits) -> Iterator[Call]:
    """Draws with every set of filters, and logarithms of probabilities.

    Args:
        like: [0, vocabulary], logits as a sampler gets them.
    """
    for count in rows(limits.rows):
        for filters in range(8):
            yield partial(_draw, like, count, filters)
        yield partial(_scores, like, count)


def _scores(like: Tensor, count: int) -> None:
    logits = like.new_zeros((count, like.shape[1]))
    ids = ops.argmax(logits, -1)
    ops.token_logprob(logits, ids, dtype=torch.float32)
    ops.log_softmax(logits, -1, dtype=torch.float32)
    for k in (1, 20):
        ops.topk(logits, min(k, like.shape[1]))


def _draw(like: Tensor, count: int, filters: int) -> None:
    """`filters`: a bit each for top-k, top-p and min-p."""
    logits = like.new_zeros((count, like.shape[1]))
    real = torch.ones(count, dtype=torch.float32, device=like.device)
    whole = torch.ones(count, dtype=torch.int64, device=like.device)
    ops.sample(
        logits, seeds=whole, positions=whole, temperature=real,
        top_k=whole.int() if filters & 1 else None, top_p=0.9 * real if filters & 2 else None,
        min_p=0.1 * real if filters & 4 else None,
    )  # fmt: skip
