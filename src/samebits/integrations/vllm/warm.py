"""Kernels that a server will need are compiled when it starts, several at a time.

vLLM's own dry runs meet the kernels of a full step and of captured batches, one after the other.
Here are the calls that they leave out, or come to later: products with every number of rows that
has a schedule of its own, attention of requests of all kinds in company, draws with every filter.
Calls of several ranks are left out: ranks miss different kernels, and must not wait for each other.
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

log = logging.getLogger("vllm.samebits")
Call = Callable[[], object]
Tensor = torch.Tensor
#: Requests of a step as (new tokens, keys): prompts, chunks, drafts, decoding, and mixtures.
_STEPS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((20, 20),), ((500, 500),), ((100, 100),) * 8, ((2000, 2000),), ((500, 2000),), ((4, 300),) * 3,
    ((1, 300),), ((1, 300),) * 8, ((1, 300),) * 64, ((1, 4000),), ((1, 4000),) * 8,
    ((1, 300),) * 5 + ((200, 200),), ((1, 300),) * 5 + ((200, 900),) * 2,
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Of one step: new tokens, requests, keys of a request; and tokens of a page."""

    tokens: int
    requests: int
    keys: int
    page: int = 64


def warm_up(worker: Any) -> None:
    """Compiles what the model of a worker, just loaded, will need."""
    config, model = worker.vllm_config, worker.model_runner.get_model()
    scheduler, size = config.scheduler_config, config.model_config.get_vocab_size()
    device = torch.device(worker.device)
    limits = Limits(
        tokens=min(scheduler.max_num_batched_tokens, BUCKETS[-1]),
        requests=scheduler.max_num_seqs,
        keys=config.model_config.max_model_len,
        page=getattr(config.cache_config, "block_size", None) or 64,
    )
    calls = [
        *products(model, limits), *experts(model, limits), *attention(model, limits, device),
        *draws(size, limits, device),
    ]  # fmt: skip
    ranks = config.parallel_config.tensor_parallel_size
    threads = max(1, min(16, (os.cpu_count() or 1) // ranks))
    with torch.inference_mode():
        for error in compile_ahead(calls, threads):
            log.warning("samebits: a call was not warmed up: %s", error)


def rows(most: int) -> list[int]:
    """Numbers of rows that need kernels of their own, up to `most`.

    Triton compiles one kernel for multiples of 16 and one for others.
    """
    edges = [edge for edge in BUCKETS if edge <= most]
    return sorted({*edges, *(edge - 1 for edge in edges if edge > 16), most})


def products(model: Any, limits: Limits) -> Iterator[Call]:
    """One call for each kind of layer and number of rows; of lm_head only as many as requests."""
    seen = set()
    for layer in model.modules():
        weight = getattr(layer, "samebits_weight", None)
        if weight is None or (_adds(layer) and layer.tp_size > 1):
            continue
        head = hasattr(layer, "num_embeddings")
        bias = None if getattr(layer, "skip_bias_add", False) else getattr(layer, "bias", None)
        kind = (_adds(layer), head, weight.shape, layer.samebits_tree, bias is None)
        if kind not in seen:
            seen.add(kind)
            row = weight.new_zeros((1, weight.shape[1]))
            for count in rows(min(limits.tokens, limits.requests) if head else limits.tokens):
                yield _product(layer, row.expand(count, -1), bias)


def experts(model: Any, limits: Limits) -> Iterator[Call]:
    """One call for each kind of mixture, where one rank has all experts, and number of rows."""
    seen = set()
    for layer in model.modules():
        w = getattr(layer, "w13_weight", None)
        if w is None or layer.expert_map is not None or w.shape in seen:
            continue
        seen.add(w.shape)
        for count in rows(limits.tokens):
            yield _mixture(layer, w.new_zeros((1, w.shape[2])).expand(count, -1))


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


def _adds(layer: Any) -> bool:
    return hasattr(layer, "reduce_results")


def _product(layer: Any, row: Tensor, bias: Tensor | None) -> Call:
    if _adds(layer):
        return lambda: layer(row.contiguous())
    return lambda: layer.quant_method.apply(layer, row.contiguous(), bias)


def attention(model: Any, limits: Limits, device: torch.device) -> Iterator[Call]:
    """Calls of `_STEPS` for each kind of attention of a model, as far as the limits allow.

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
        for step in _STEPS:
            tokens, keys = sum(new for new, _ in step), max(keys for _, keys in step)
            if tokens <= limits.tokens and len(step) <= limits.requests and keys <= limits.keys:
                common = _common(step, -(-limits.keys // limits.page), device)
                metadata = GpuMetadata(tokens, parts(common), True)
                yield _attention(layer, metadata, limits.page, device)


def _common(step: tuple[tuple[int, int], ...], pages: int, device: torch.device) -> Any:
    """vLLM's ``CommonAttentionMetadata`` of a step, its fields that are read."""
    new, keys = (torch.tensor(x, dtype=torch.int32) for x in zip(*step, strict=True))
    offsets = torch.cat((new.new_zeros(1), new.cumsum(0, dtype=torch.int32)))
    return SimpleNamespace(
        num_actual_tokens=int(offsets[-1]), num_reqs=len(step), max_query_len=int(new.max()),
        query_start_loc=offsets.to(device), query_start_loc_cpu=offsets,
        seq_lens=keys.to(device), seq_lens_cpu_upper_bound=keys, causal=True,
        block_table_tensor=torch.zeros((len(step), pages), dtype=torch.int32, device=device),
    )  # fmt: skip


def _attention(layer: Any, step: Any, page: int, device: torch.device) -> Call:
    impl, tokens = layer.impl, step.tokens
    dtype, heads, size = layer.dtype, impl.num_kv_heads, impl.head_size

    def call() -> None:
        query, out = (
            torch.zeros((tokens, impl.num_heads, size), dtype=dtype, device=device) for _ in "qo"
        )
        key, value = (torch.zeros((tokens, heads, size), dtype=dtype, device=device) for _ in "kv")
        cache = torch.zeros((1, heads, page, 2 * size), dtype=dtype, device=device)
        if impl.fp8:
            cache = cache.to(torch.float8_e4m3fn).view(torch.uint8)
        impl.attend(layer, query, key, value, cache, step, out)

    return call


def draws(vocabulary: int, limits: Limits, device: torch.device) -> Iterator[Call]:
    """Draws with every set of filters, penalties, and logarithms of probabilities."""
    for count in sorted({1, min(3, limits.requests), limits.requests}):
        for filters in range(8):
            yield _draw(count, vocabulary, filters, device)
        yield partial(_scores, count, vocabulary, device)


def _scores(count: int, vocabulary: int, device: torch.device) -> None:
    logits = _logits(count, vocabulary, device)
    ids = ops.argmax(logits, -1)
    ops.token_logprob(logits, ids, dtype=torch.float32)
    torch.log_softmax(logits, -1, dtype=torch.float32)


def _logits(count: int, vocabulary: int, device: torch.device) -> Tensor:
    return torch.zeros((count, vocabulary), dtype=torch.float32, device=device)


def _draw(count: int, vocabulary: int, filters: int, device: torch.device) -> Call:
    """`filters`: a bit each for top-k, top-p and min-p."""

    def call() -> None:
        real = torch.ones(count, dtype=torch.float32, device=device)
        whole = torch.ones(count, dtype=torch.int64, device=device)
        ops.sample(
            _logits(count, vocabulary, device), seeds=whole, positions=whole, temperature=real,
            top_k=whole.int() if filters & 1 else None, top_p=0.9 * real if filters & 2 else None,
            min_p=0.1 * real if filters & 4 else None,
        )  # fmt: skip

    return call
