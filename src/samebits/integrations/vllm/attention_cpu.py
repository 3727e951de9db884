"""Attention over vLLM's paged cache on a CPU: what layers share is checked once a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionMetadataBuilder, AttentionType

from samebits.errors import UncoveredError
from samebits.integrations.vllm.attention import SamebitsImpl, refuse
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
        if not isinstance(common.causal, bool):
            raise UncoveredError(
                "vLLM attention", "each request of the batch has a mask of its own",
                remedy="Use a model whose attention is causal",
            )  # fmt: skip
        offsets, lengths, table, slots = (
            x.to(torch.int64)
            for x in (
                common.query_start_loc, common.seq_lens, common.block_table_tensor,
                common.slot_mapping,
            )
        )  # fmt: skip
        n = common.num_actual_tokens
        return CpuMetadata(n, offsets, lengths, table, slots[:n], common.causal)


class CpuImpl(SamebitsImpl):
    """One layer's attention on a CPU."""

    _cache: torch.Tensor | None = None
    _planes_of_cache: tuple[torch.Tensor, torch.Tensor]

    def forward(  # type: ignore[override]
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CpuMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query [tokens, Hq, D]; kv_cache [pages, Hkv, slots, 2 D]; writes and returns output."""
        if output_scale is not None or output_block_scale is not None:
            refuse("a quantised output")
        if attn_metadata is None:  # memory is being measured
            return output.zero_()
        step, n = attn_metadata, attn_metadata.tokens
        if len(query) != n:
            query, key, value = query[:n], key[:n], value[:n]
        out = output[:n].view(n, self.num_heads, -1)
        if self.attn_type == AttentionType.ENCODER_ONLY:
            result = attention_varlen(
                query, key, value, step.offsets, step.offsets, scale=self.scale,
                window=self.sliding_window, softcap=self.soft_cap, sinks=self.sinks,
            )  # fmt: skip
            assert isinstance(result, torch.Tensor)
            out.copy_(result)
            return output
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
        paged.attend(
            query, keys, values, checked, scale=self.scale, causal=step.causal,
            window=self.sliding_window, softcap=self.soft_cap, sinks=self.sinks, out=out,
        )  # fmt: skip
        return output


def _planes(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, each [pages, slots, Hkv, D], of a cache [pages, Hkv, slots, 2 D].

    A head's part of a page holds its keys and then its values, each side by side.
    """
    pages, heads, slots, width = kv_cache.shape
    planes = kv_cache.view(pages, heads, 2, slots, width // 2).permute(2, 0, 3, 1, 4)
    return planes[0], planes[1]
