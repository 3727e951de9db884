"""Batching rules of ``torch.func.vmap`` for operations that torch would split under it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samebits.mode.aten import attention
from samebits.mode.registry import aten

_BATCHED = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("FuncTorchBatched"))
_functorch: Any = torch._C._functorch


def _unwrap(x: torch.Tensor | None, level: int) -> tuple[torch.Tensor | None, int | None]:
    if x is None or not _functorch.is_batchedtensor(x) or _functorch.maybe_get_level(x) != level:
        return x, None
    return _functorch.get_unwrapped(x), _functorch.maybe_get_bdim(x)


@aten("_fused_rms_norm", key="FuncTorchBatched")
def fused_rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    eps: float | None,
) -> Any:
    level = _functorch.maybe_current_level()
    x, dim = _unwrap(input, level)
    w, weight_dim = _unwrap(weight, level)
    assert x is not None
    shape = tuple(normalized_shape)
    results: Sequence[torch.Tensor]
    with torch._C._ExcludeDispatchKeyGuard(_BATCHED):
        if weight_dim is None:
            assert dim is not None
            results = torch._fused_rms_norm(x.movedim(dim, 0), shape, w, eps)
        else:
            assert w is not None
            weights = w.unbind(weight_dim)
            inputs = [x] * len(weights) if dim is None else x.unbind(dim)
            each = [
                torch._fused_rms_norm(i, shape, j, eps)
                for i, j in zip(inputs, weights, strict=True)
            ]
            results = tuple(torch.stack(r) for r in zip(*each, strict=True))
    return tuple(_functorch._add_batch_dim(r, 0, level) for r in results)


@aten("scaled_dot_product_attention", key="FuncTorchVmapMode")
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    level = _functorch.maybe_current_level()
    unwrapped = [_unwrap(x, level) for x in (query, key, value, attn_mask)]
    rank = max(x.dim() - (dim is not None) for x, dim in unwrapped if x is not None)
    q, k, v, mask = (_batch_first(x, dim, rank) for x, dim in unwrapped)
    assert q is not None and k is not None and v is not None
    with torch._C._ExcludeDispatchKeyGuard(_BATCHED):
        out = attention.whole(
            q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return _functorch._add_batch_dim(out, 0, level)


def _batch_first(x: torch.Tensor | None, dim: int | None, rank: int) -> torch.Tensor | None:
    """`x` with its mapped dimension (or one of size 1) first and `rank` dimensions after it."""
    if x is None:
        return None
    x = x[None] if dim is None else x.movedim(dim, 0)
    return x.reshape(x.size(0), *(1,) * (rank + 1 - x.dim()), *x.shape[1:])
