"""Attention of a step on a GPU: requests as parts, lengths and tables stay on the device."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadataBuilder

from samebits.integrations.vllm.attention import SamebitsImpl, causal
from samebits.ops import attention_paged, attention_varlen, store_paged

#: Rows of new prompts from which on they are worth a call of their own.
_APART = 2048


@dataclass
class Part:
    """Requests that lie one after the other in a batch and run by one call.

    Attributes:
        rows: their rows in the batch.
        offsets: [requests + 1] cumulative query lengths, from 0.
        lengths: [requests] keys of each request, the new ones included.
        pages: [requests, pages] block table.
        longest: the longest query, or more.
        fresh: no request has keys of earlier steps.
        keys: of the longest request, or more; None: not known on the host.
        total: of all requests, or more; None likewise.
    """

    rows: slice
    offsets: torch.Tensor
    lengths: torch.Tensor
    pages: torch.Tensor
    longest: int
    fresh: bool = False
    keys: int | None = None
    total: int | None = None


@dataclass
class GpuMetadata:
    """What all layers of a step share.

    Attributes:
        tokens: rows of the batch; where a graph is replayed, with those that it has too many.
        parts: one, or the requests that decode and then the others.
        causal: rows see nothing behind them.
        real: rows of requests, the first ones.
    """

    tokens: int
    parts: list[Part]
    causal: bool
    real: int | None = None


class GpuMetadataBuilder(AttentionMetadataBuilder[GpuMetadata]):
    """Lengths and tables stay on the device: any batch can be captured in a CUDA graph."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    #: Requests with more rows than this come last; the second model runner always sorts them so.
    reorder_batch_threshold: int | None = 1

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> GpuMetadata:
        common = common_attn_metadata
        real = int(common.query_start_loc_cpu[common.num_reqs])
        return GpuMetadata(common.num_actual_tokens, parts(common), causal(common), real)

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> GpuMetadata:
        """One part that serves every length that its table holds."""
        common = common_attn_metadata
        common.seq_lens.fill_(1)  # a capture computes, and need not compute much
        return GpuMetadata(common.num_actual_tokens, [_whole(common)], bool(common.causal))


def _whole(common: Any) -> Part:
    """All requests of a batch, with nothing said about their lengths."""
    return Part(
        slice(0, common.num_actual_tokens), common.query_start_loc, common.seq_lens,
        common.block_table_tensor, common.max_query_len,
    )  # fmt: skip


def parts(common: Any) -> list[Part]:
    """The batch as one part, or as up to three: the requests of one row that lead it, those with
    keys of earlier steps, and many rows of new prompts behind them.

    Both model runners put requests that decode in front, and what is left of a prompt before the
    next one. Apart from the others the first are a decoding batch, and the last need no pages: for
    both there are faster kernels.
    """
    whole, most = _whole(common), getattr(common, "seq_lens_cpu_upper_bound", None)
    if most is None:
        return [whole]
    offsets = common.query_start_loc_cpu[: common.num_reqs + 1].to(torch.int64)
    rows, keys = offsets.diff(), most[: common.num_reqs].to(torch.int64)
    if common.max_query_len == 1:
        return [_told(whole, rows, keys)]
    count, longer, old = len(rows), (rows != 1).nonzero(), (rows != keys).nonzero()
    decoding = int(longer[0]) if len(longer) else count
    fresh = max(decoding, int(old[-1]) + 1 if len(old) else 0)
    if fresh > decoding and int(offsets[-1] - offsets[fresh]) < _APART:
        fresh = count
    edges = sorted({0, decoding, fresh, count})
    if len(edges) == 2:
        return [_told(whole, rows, keys)]
    found = []
    for i, j in itertools.pairwise(edges):
        stop = whole.rows.stop if j == count else int(offsets[j])
        part = Part(
            slice(int(offsets[i]), stop), whole.offsets[i : j + 1], whole.lengths[i:j],
            whole.pages[i:j], max(1, int(rows[i:j].max())),  # a graph may add requests of no row
        )  # fmt: skip
        if i:
            part.offsets = part.offsets - int(offsets[i])
        found.append(_told(part, rows[i:j], keys[i:j]))
    return found


def _told(part: Part, rows: torch.Tensor, keys: torch.Tensor) -> Part:
    """A part, and what the host knows of its requests' rows and keys."""
    part.fresh = part.longest > 1 and torch.equal(rows, keys)
    part.keys, part.total = int(keys.max()), int(keys.sum())
    return part


class GpuImpl(SamebitsImpl):
    """One layer's attention on a GPU."""

    def attend(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        step: GpuMetadata,
        out: torch.Tensor,
    ) -> None:
        for part in step.parts:
            self._run(layer, part, step.causal, query, key, value, kv_cache, out)

    def _run(
        self,
        layer: Any,
        part: Part,
        causal: bool,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """A part's rows of `out`."""
        rows = part.rows
        options = self.options | {
            "causal": causal and not self.encoder, "max_q": part.longest, "out": out[rows],
        }  # fmt: skip
        if self.encoder or (part.fresh and not self.fp8):
            # The same bits as from the cache, by kernels that need not look up pages.
            attention_varlen(
                query[rows], key[rows], value[rows], part.offsets, part.offsets,
                max_k=part.longest, **options,
            )  # fmt: skip
            return
        keys, values = _planes(kv_cache)
        if self.fp8:
            keys, values = (x.view(torch.float8_e4m3fn) for x in (keys, values))
            options |= {"k_scale": layer._k_scale, "v_scale": layer._v_scale}
        attention_paged(
            query[rows], keys, values, part.pages, part.lengths, part.offsets, max_k=part.keys,
            total_k=part.total, **options,
        )  # fmt: skip

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Stores new keys and values; in fp8 by vLLM's kernel, which rounds them."""
        if self.encoder:
            return
        keys, values = _planes(kv_cache)
        if not self.fp8:
            store_paged(key, value, keys, values, slot_mapping)
            return
        from vllm import _custom_ops

        _custom_ops.reshape_and_cache_flash(
            key, value, keys, values, slot_mapping, self.kv_cache_dtype, layer._k_scale,
            layer._v_scale,
        )  # fmt: skip


def _planes(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, each [pages, slots, Hkv, D], of a cache [pages, Hkv, slots, 2 D].

    A slot's row of a head holds its key and then its value.
    """
    keys, values = kv_cache.transpose(1, 2).chunk(2, -1)
    return keys, values
