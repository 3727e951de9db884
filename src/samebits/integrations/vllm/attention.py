"""Attention over vLLM's paged cache: one contract for prefill, chunks, decode and verification.

Here is what a layer's attention is on every device; attention_gpu.py and attention_cpu.py say how a
step's requests are handed to `samebits.ops`, and backend.py what vLLM is told.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionImpl, AttentionType

from samebits.errors import UncoveredError

Tensor = torch.Tensor
#: Cache types of vLLM that hold e4m3.
FP8 = ("fp8", "fp8_e4m3")


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
        sinks: Tensor | None = None,
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
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.fp8 = kv_cache_dtype in FP8
        self.encoder = attn_type == AttentionType.ENCODER_ONLY
        #: Of every call of `samebits.ops`.
        self.options: dict[str, Any] = {
            "scale": self.scale, "window": sliding_window, "softcap": logits_soft_cap or None,
            "sinks": sinks,
        }  # fmt: skip

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """query [tokens, Hq, D]; kv_cache [pages, Hkv, slots, 2 D]; writes and returns output."""
        if output_scale is not None or output_block_scale is not None:
            refuse("a quantised output")
        if attn_metadata is None:  # memory is being measured
            return output.zero_()
        out = output.view(len(output), self.num_heads, -1)
        self.attend(layer, query, key, value, kv_cache, attn_metadata, out)
        return output

    @abstractmethod
    def attend(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        step: Any,
        out: Tensor,
    ) -> None:
        """Writes out [tokens, Hq, D]; rows behind the step's last token may keep what they hold."""


def causal(common: Any) -> bool:
    """Whether the rows of a step see nothing behind them.

    Args:
        common: vLLM's ``CommonAttentionMetadata``.

    Raises:
        UncoveredError: that differs from request to request.
    """
    if not isinstance(common.causal, bool):
        raise UncoveredError(
            "vLLM attention", "each request of the batch has a mask of its own",
            remedy="Use a model whose attention is causal",
        )  # fmt: skip
    return common.causal


def refuse(what: str) -> None:
    raise UncoveredError(
        "vLLM attention", f"{what} has no contract", remedy="Use a model without it"
    )
