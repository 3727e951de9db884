"""The attention backend, as vLLM asks about it: what it takes, and who computes."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.platforms import current_platform
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from samebits.integrations.vllm.attention import FP8

#: Largest head that the kernels hold.
_MAX_HEAD = 256


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
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", *FP8]

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN" if _on_cpu() else "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        if _on_cpu():
            from samebits.integrations.vllm.attention_cpu import CpuImpl

            return CpuImpl
        from samebits.integrations.vllm.attention_gpu import GpuImpl

        return GpuImpl

    @staticmethod
    def get_builder_cls() -> type[AttentionMetadataBuilder[Any]]:
        if _on_cpu():
            from samebits.integrations.vllm.attention_cpu import CpuMetadataBuilder

            return CpuMetadataBuilder
        from samebits.integrations.vllm.attention_gpu import GpuMetadataBuilder

        return GpuMetadataBuilder

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
