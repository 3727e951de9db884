"""Attention of a step on a CPU: what layers share is checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionMetadataBuilder

from samebits.integrations.vllm.attention import SamebitsImpl, causal
from samebits.ops import attention_varlen, store_paged
from samebits.ops.attention import paged


@dataclass
class CpuMetadata:
    """What all layers of a step share.

    Attributes:
        tokens: rows of the batch that are no padding.
        offsets: [requests + 1] cumulative query lengths, int64.
        lengths: [requests] keys of each request, the new ones included.
        table: [requests, pages] block table.
        slots: [tokens] where new keys and values go.
        causal: rows see nothing behind them.
        step: the same, checked; made by the first layer that knows the cache.
    """

    tokens: int
    offsets: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor
    slots: torch.Tensor
    causal: bool
    step: paged.Step | None = None


class CpuMetadataBuilder(AttentionMetadataBuilder[CpuMetadata]):
    """Lengths and tables of a batch as the engine takes them."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> CpuMetadata:
        common = common_attn_metadata
        offsets, lengths, table, slots = (
            x.to(torch.int64)
            for x in (
                common.query_start_loc, common.seq_lens, common.block_table_tensor,
                common.slot_mapping,
            )
        )  # fmt: skip
        n = common.num_actual_tokens
        return CpuMetadata(n, offsets, lengths, table, slots[:n], causal(common))


class CpuImpl(SamebitsImpl):
    """One layer's attention on a CPU; it stores new keys itself."""

    _cache: torch.Tensor | None = None
    _planes_of_cache: tuple[torch.Tensor, torch.Tensor]

    def attend(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        step: CpuMetadata,
        out: torch.Tensor,
    ) -> None:
        n = step.tokens
        if len(query) != n:
            query, key, value, out = query[:n], key[:n], value[:n], out[:n]
        if self.encoder:
            attention_varlen(
                query, key, value, step.offsets, step.offsets, out=out, causal=False,
                **self.options,
            )  # fmt: skip
            return
        if self._cache is not kv_cache:
            self._cache, self._planes_of_cache = kv_cache, _planes(kv_cache)
        keys, values = self._planes_of_cache
        if self.kv_sharing_target_layer_name is None:
            store_paged(key, value, keys, values, step.slots)
        pages, size = keys.shape[:2]
        checked = step.step
        if checked is None or (checked.pages, checked.sequences.page) != (pages, size):
            checked = step.step = paged.step(
                "attention_paged", step.table, step.lengths, step.offsets, rows=n, pages=pages,
                page=size,
            )  # fmt: skip
        paged.attend(query, keys, values, checked, causal=step.causal, out=out, **self.options)


def _planes(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, each [pages, slots, Hkv, D], of a cache [pages, Hkv, slots, 2 D].

    A head's part of a page holds its keys and then its values, each side by side.
    """
    pages, heads, slots, width = kv_cache.shape
    planes = kv_cache.view(pages, heads, 2, slots, width // 2).permute(2, 0, 3, 1, 4)
    return planes[0], planes[1]
