"""Low-rank adapters: each row is multiplied with its own adapter, whoever uses another one.

y += B[adapter] (A[adapter] x): both products are `ops.grouped_linear`, the result of each is
rounded to the model's dtype, and so is the sum. A row without an adapter adds zeros.
"""

from __future__ import annotations

from typing import Any

import torch

from samebits import ops
from samebits.integrations.vllm.patches import Patches

Tensor = torch.Tensor


def install(patches: Patches) -> None:
    """Replaces the adapter kernels of this platform."""
    from vllm.platforms import current_platform
    from vllm.utils.import_utils import resolve_obj_by_qualname

    wrapper = resolve_obj_by_qualname(current_platform.get_punica_wrapper())
    patches.set(wrapper, "add_lora_linear", _linear)
    patches.set(wrapper, "add_lora_logits", _logits)
    patches.set(wrapper, "add_lora_embedding", _embedding)


def _adapters(stacked: Tensor) -> Tensor:
    """[adapters, 1, out, in] or [adapters, out, in] as the latter."""
    return stacked.squeeze(1) if stacked.dim() == 4 else stacked


def _shrunk(x: Tensor, a: Tensor, ids: Tensor, scale: float) -> Tensor:
    low = ops.grouped_linear(x, _adapters(a), ids)
    return low if scale == 1.0 else low * scale


def _linear(
    self: Any,
    y: Tensor,
    x: Tensor,
    lora_a_stacked: tuple[Tensor, ...],
    lora_b_stacked: tuple[Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    **_: Any,
) -> None:
    x, rows = x.reshape(-1, x.shape[-1]), y.view(-1, y.shape[-1])
    ids = self._token_lora_indices[: x.shape[0]]
    start = 0
    for a, b, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
        low = _shrunk(x, a, ids, scale)
        rows[:, start : start + size] += ops.grouped_linear(low, _adapters(b), ids)
        start += size


def _logits(
    self: Any, y: Tensor, x: Tensor, lora_a_stacked: Tensor, lora_b_stacked: Tensor, scale: float,
    **_: Any,
) -> None:  # fmt: skip
    x, rows = x.reshape(-1, x.shape[-1]), y.view(-1, y.shape[-1])
    ids = self._sampler_indices[: x.shape[0]]
    low = _shrunk(x, lora_a_stacked, ids, scale)
    rows += ops.grouped_linear(low, _adapters(lora_b_stacked), ids)


def _embedding(
    self: Any, y: Tensor, x: Tensor, lora_b_stacked: Tensor, add_inputs: bool = True, **_: Any
) -> None:
    ids = self._token_lora_indices[: x.shape[0]]
    rows = ops.grouped_linear(x.to(y.dtype), _adapters(lora_b_stacked), ids)
    y.copy_(y + rows if add_inputs else rows)
