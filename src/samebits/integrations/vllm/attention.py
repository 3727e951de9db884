"""Attention over vLLM's paged cache: one contract for prefill, chunks, decode and verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.platforms import current_platform
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from samebits.errors import UncoveredError
from samebits.ops import attention_paged, attention_varlen

#: Largest head that the kernels hold.
_MAX_HEAD = 256
_FP8 = ("fp8", "fp8_e4m3")


def _on_cpu() -> bool:
    return bool(current_platform.is_cpu())


class SamebitsBackend(AttentionBackend):
    """The backend: ``CUSTOM`` on a GPU, in the place of ``CPU_ATTN`` on a CPU."""

    #: On a CPU the layer stores its keys itself: where they go is worked out once a step.
    forward_includes_kv_cache_update: ClassVar[bool] = _on_cpu()
    supported_dtypes: ClassVar[list[torch.dtype]] = [
        torch.float16,
        torch.bfloat16,
        torch.float32,
    ]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", *_FP8]

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN" if _on_cpu() else "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[SamebitsImpl]:
        return SamebitsImpl

    @staticmethod
    def get_builder_cls() -> type[SamebitsMetadataBuilder]:
        return SamebitsMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and head_size <= _MAX_HEAD

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability.major == 9)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, AttentionType.ENCODER_ONLY)

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """Logical shape; keys and values of a head lie in one row."""
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        """A page is [heads, slots, 2 D] in memory: the keys of one head are near each other."""
        return (1, 2, 0, 3, 4) if include_num_layers_dimension else (0, 1, 2, 3)

    @classmethod
    def supported_kv_cache_layouts(cls) -> Any:
        """The same, in the words of newer releases."""
        from vllm.v1.kv_cache_interface import KVCacheLayout

        return (KVCacheLayout.LBHNC,)


@dataclass
class SamebitsMetadata:
    """What all layers of a step share.

    Attributes:
        tokens: rows of the batch that are no padding.
        longest: the longest query, or more.
        offsets: [requests + 1] cumulative query lengths.
        lengths: [requests] keys of each request, the new ones included.
        pages: [requests, pages] block table.
        slots: [tokens] where new keys and values go.
        causal: rows see nothing behind them.
        fresh: no request has keys of earlier steps.
        at: pages and slots of the rows that are stored; on a CPU.
    """

    tokens: int
    longest: int
    offsets: torch.Tensor
    lengths: torch.Tensor
    pages: torch.Tensor
    slots: torch.Tensor
    causal: bool
    fresh: bool
    at: tuple[torch.Tensor, torch.Tensor] | None = None


class SamebitsMetadataBuilder(AttentionMetadataBuilder[SamebitsMetadata]):
    """Lengths and tables stay on the device: any batch can be captured in a CUDA graph."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> SamebitsMetadata:
        common = common_attn_metadata
        if not isinstance(common.causal, bool):
            raise UncoveredError(
                "vLLM attention", "each request of the batch has a mask of its own",
                remedy="Use a model whose attention is causal",
            )  # fmt: skip
        offsets, lengths = common.query_start_loc, common.seq_lens
        pages, slots, at = common.block_table_tensor, common.slot_mapping, None
        if _on_cpu():
            offsets, lengths, pages = (t.to(torch.int64) for t in (offsets, lengths, pages))
            slots = slots[: common.num_actual_tokens]
            size = self.kv_cache_spec.block_size
            at = (slots // size, slots % size)
        return SamebitsMetadata(
            tokens=common.num_actual_tokens,
            longest=common.max_query_len,
            offsets=offsets,
            lengths=lengths,
            pages=pages,
            slots=slots,
            causal=common.causal,
            fresh=_fresh(common),
            at=at,
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> SamebitsMetadata:
        metadata = self.build(0, common_attn_metadata)
        metadata.lengths.fill_(1)  # a capture computes, and need not compute much
        metadata.fresh = False
        return metadata


def _fresh(common: Any) -> bool:
    """Whether all keys of a batch are new, as far as the host knows."""
    most = getattr(common, "seq_lens_cpu_upper_bound", None)
    if most is None or common.max_query_len == 1:
        return False
    requests = common.num_reqs
    lengths = common.query_start_loc_cpu[: requests + 1].diff()
    return bool(torch.equal(most[:requests].to(lengths.dtype), lengths))


class SamebitsImpl(AttentionImpl):
    """One layer's attention."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **others: Any,
    ) -> None:
        if alibi_slopes is not None:
            _refuse("ALiBi slopes")
        if attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
            _refuse(f"attention of type {attn_type}")
        extra = sorted(name for name, value in others.items() if value not in (None, False))
        if extra:
            _refuse(f"the options {', '.join(extra)}")
        self.num_heads = num_heads
        self.head_size = head_size
        self.num_kv_heads = num_kv_heads or num_heads
        self.scale = float(scale)
        self.sliding_window = sliding_window
        self.soft_cap = logits_soft_cap or None
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self.fp8 = kv_cache_dtype in _FP8

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: SamebitsMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query [tokens, Hq, D]; kv_cache [pages, Hkv, slots, 2 D]; writes and returns output."""
        if output_scale is not None or output_block_scale is not None:
            _refuse("a quantised output")
        if attn_metadata is None:  # memory is being measured
            return output.zero_()
        step, n = attn_metadata, attn_metadata.tokens
        options: dict[str, Any] = {
            "scale": self.scale, "causal": step.causal, "window": self.sliding_window,
            "softcap": self.soft_cap, "sinks": self.sinks, "max_q": step.longest,
        }  # fmt: skip
        encoder = self.attn_type == AttentionType.ENCODER_ONLY
        if step.at is not None and not encoder and self.kv_sharing_target_layer_name is None:
            keys, values = self._planes(kv_cache)
            keys[step.at], values[step.at] = key[:n], value[:n]
        if encoder or (step.fresh and not self.fp8):
            # The same bits as from the cache, by kernels that need not look up pages.
            options["causal"] = step.causal and not encoder
            result = attention_varlen(
                query[:n], key[:n], value[:n], step.offsets, step.offsets, max_k=step.longest,
                **options,
            )  # fmt: skip
        else:
            keys, values = self._planes(kv_cache)
            if self.fp8:
                keys, values = (x.view(torch.float8_e4m3fn) for x in (keys, values))
                options |= {"k_scale": layer._k_scale, "v_scale": layer._v_scale}
            result = attention_paged(
                query[:n], keys, values, step.pages, step.lengths, step.offsets, **options
            )
        assert isinstance(result, torch.Tensor)
        output[:n].copy_(result.view(output[:n].shape))
        return output

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Stores new keys and values on a GPU by vLLM's kernel, which rounds nothing but fp8."""
        if self.attn_type == AttentionType.ENCODER_ONLY:
            return
        from vllm import _custom_ops

        keys, values = self._planes(kv_cache)
        _custom_ops.reshape_and_cache_flash(
            key, value, keys, values, slot_mapping, self.kv_cache_dtype, layer._k_scale,
            layer._v_scale,
        )  # fmt: skip

    def _planes(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each [pages, slots, Hkv, D]."""
        pages, heads, slots, _ = kv_cache.shape
        if _on_cpu():  # a page's own bytes: the keys of a head, then its values
            planes = kv_cache.view(pages, heads, 2, slots, self.head_size).permute(2, 0, 3, 1, 4)
            return planes[0], planes[1]
        keys, values = kv_cache.transpose(1, 2).chunk(2, -1)
        return keys, values


def _refuse(what: str) -> None:
    raise UncoveredError(
        "vLLM attention", f"{what} has no contract", remedy="Use a model without it"
    )
