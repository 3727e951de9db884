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
from samebits.ops import attention_paged, attention_varlen, store_paged

#: Largest head that the kernels hold.
_MAX_HEAD = 256
_FP8 = ("fp8", "fp8_e4m3")


def _on_cpu() -> bool:
    return bool(current_platform.is_cpu())


class SamebitsBackend(AttentionBackend):
    """The backend: ``CUSTOM`` on a GPU, in the place of ``CPU_ATTN`` on a CPU."""

    #: On a CPU the layer stores its keys itself.
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
        if _on_cpu():
            from samebits.integrations.vllm.attention_cpu import CpuImpl

            return CpuImpl
        return SamebitsImpl

    @staticmethod
    def get_builder_cls() -> type[AttentionMetadataBuilder[Any]]:
        if _on_cpu():
            from samebits.integrations.vllm.attention_cpu import CpuMetadataBuilder

            return CpuMetadataBuilder
        return SamebitsMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(16)]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        """Pages of a step's keys, if the user does not say: one look-up a step."""
        return default_block_size if _on_cpu() else max(default_block_size, 64)

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
class SamebitsMetadata:
    """What all layers of a step share.

    Attributes:
        tokens: rows of the batch that are no padding.
        parts: one, or the requests that decode and then the others.
        causal: rows see nothing behind them.
    """

    tokens: int
    parts: list[Part]
    causal: bool


class SamebitsMetadataBuilder(AttentionMetadataBuilder[SamebitsMetadata]):
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
    ) -> SamebitsMetadata:
        common = common_attn_metadata
        if not isinstance(common.causal, bool):
            raise UncoveredError(
                "vLLM attention", "each request of the batch has a mask of its own",
                remedy="Use a model whose attention is causal",
            )  # fmt: skip
        return SamebitsMetadata(common.num_actual_tokens, _parts(common), common.causal)

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> SamebitsMetadata:
        """One part that serves every length that its table holds."""
        common = common_attn_metadata
        common.seq_lens.fill_(1)  # a capture computes, and need not compute much
        return SamebitsMetadata(common.num_actual_tokens, [_whole(common)], bool(common.causal))


def _whole(common: Any) -> Part:
    """All requests of a batch, with nothing said about their lengths."""
    return Part(
        slice(0, common.num_actual_tokens), common.query_start_loc, common.seq_lens,
        common.block_table_tensor, common.max_query_len,
    )  # fmt: skip


def _parts(common: Any) -> list[Part]:
    """The batch as one part, or as the requests of one row that lead it and the others.

    Both model runners put requests that decode in front. Apart from the others they are a decoding
    batch, and the others a batch of prompts, for which there are faster kernels.
    """
    whole, most = _whole(common), getattr(common, "seq_lens_cpu_upper_bound", None)
    if most is None:
        return [whole]
    offsets = common.query_start_loc_cpu[: common.num_reqs + 1].to(torch.int64)
    rows, keys = offsets.diff(), most[: common.num_reqs].to(torch.int64)
    longer = (rows != 1).nonzero()
    first = int(longer[0]) if len(longer) else len(rows)
    if first in (0, len(rows)) or common.max_query_len == 1:
        return [_told(whole, rows, keys)]
    decoding = Part(
        slice(0, first), whole.offsets[: first + 1], whole.lengths[:first], whole.pages[:first], 1,
        keys=int(keys[:first].max()),
    )  # fmt: skip
    others = Part(
        slice(first, whole.rows.stop), whole.offsets[first:] - first, whole.lengths[first:],
        whole.pages[first:], whole.longest,
    )  # fmt: skip
    return [decoding, _told(others, rows[first:], keys[first:])]


def _told(part: Part, rows: torch.Tensor, keys: torch.Tensor) -> Part:
    """A part, and what the host knows of its requests' rows and keys."""
    part.fresh = part.longest > 1 and torch.equal(rows, keys)
    part.keys, part.total = int(keys.max()), int(keys.sum())
    return part


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
            refuse("ALiBi slopes")
        if attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
            refuse(f"attention of type {attn_type}")
        extra = sorted(name for name, value in others.items() if value not in (None, False))
        if extra:
            refuse(f"the options {', '.join(extra)}")
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
            refuse("a quantised output")
        if attn_metadata is None:  # memory is being measured
            return output.zero_()
        for part in attn_metadata.parts:
            self._run(layer, part, attn_metadata.causal, query, key, value, kv_cache, output)
        return output

    def _run(
        self,
        layer: Any,
        part: Part,
        causal: bool,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        """A part's rows of `output`."""
        rows, encoder = part.rows, self.attn_type == AttentionType.ENCODER_ONLY
        options: dict[str, Any] = {
            "scale": self.scale, "causal": causal and not encoder, "window": self.sliding_window,
            "softcap": self.soft_cap, "sinks": self.sinks, "max_q": part.longest,
            "out": output[rows].view(-1, self.num_heads, output.shape[-1]),
        }  # fmt: skip
        if encoder or (part.fresh and not self.fp8):
            # The same bits as from the cache, by kernels that need not look up pages.
            attention_varlen(
                query[rows], key[rows], value[rows], part.offsets, part.offsets,
                max_k=part.longest, **options,
            )  # fmt: skip
            return
        keys, values = self._planes(kv_cache)
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
        """Stores new keys and values on a GPU; in fp8 by vLLM's kernel, which rounds them."""
        if self.attn_type == AttentionType.ENCODER_ONLY:
            return
        keys, values = self._planes(kv_cache)
        if not self.fp8:
            store_paged(key, value, keys, values, slot_mapping)
            return
        from vllm import _custom_ops

        _custom_ops.reshape_and_cache_flash(
            key, value, keys, values, slot_mapping, self.kv_cache_dtype, layer._k_scale,
            layer._v_scale,
        )  # fmt: skip

    def _planes(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each [pages, slots, Hkv, D]."""
        keys, values = kv_cache.transpose(1, 2).chunk(2, -1)
        return keys, values


def refuse(what: str) -> None:
    raise UncoveredError(
        "vLLM attention", f"{what} has no contract", remedy="Use a model without it"
    )
