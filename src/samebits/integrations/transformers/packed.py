"""Attention of continuous batching: queries of many requests one after another, a paged cache.

transformers gathers the keys of all requests into one tensor and, with its own implementations,
computes one softmax behind a block-diagonal mask. Here each request is a sequence of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from samebits.errors import UncoveredError
from samebits.guard.receipts.operands import samplers
from samebits.ops import attention_varlen


def is_paged(kwargs: dict[str, Any]) -> bool:
    """Whether an attention call is one of continuous batching."""
    return "write_index" in kwargs and "cu_seq_lens_q" in kwargs


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kwargs: dict[str, Any],
    options: dict[str, Any],
    leaf: int | None,
) -> torch.Tensor:
    """Attends to the keys of each request, those of the new tokens included.

    Args:
        query: [1, Hq, total, D].
        key, value: [1, Hkv, total, D] of the new tokens, or (transformers 5.19 and later, which
            update the cache before they call) [1, Hkv, all, D] of all requests.
        kwargs: of the attention function: cu_seq_lens_q, cu_seq_lens_k, max_seqlen_q, ...
        options: of `samebits.ops.attention_varlen`.
        leaf: see `attention.leaf_of`.

    Returns:
        [1, total, Hq, Dv]. Rows behind the last request, where shapes are padded, are +0.
    """
    cache, cu_q = kwargs.get("cache"), kwargs["cu_seq_lens_q"]
    if cache is None:
        k, v = (x.squeeze(0).transpose(0, 1) for x in (key, value))
        window = kwargs.get("sliding_window") or getattr(module, "sliding_window", None)
    else:
        index = int(module.layer_idx)  # type: ignore[arg-type]
        window = cache.sliding_windows[index]
        k, v = cache.update(
            key_states=key, value_states=value, layer_idx=index, read_index=kwargs["read_index"],
            write_index=kwargs["write_index"],
        )  # fmt: skip
        window = None if window == 1 else window
    kind = "full_attention" if window is None else "sliding_attention"
    cu_k = _of(kwargs["cu_seq_lens_k"], kind)
    max_q = kwargs.get("max_seqlen_q", kwargs.get("max_length_q"))
    max_k = _of(kwargs.get("max_seqlen_k", kwargs.get("max_length_k")), kind)
    q = query.transpose(1, 2).squeeze(0)
    if window is not None and leaf is not None:
        k, v, cu_k = _aligned(k, v, cu_q, cu_k, kwargs.get("position_ids"), leaf)
        max_k = None if max_k is None else max_k + leaf
    total = q.shape[0]
    if q.is_cpu:  # where the offsets are read
        q = q[: int(cu_q[-1])]
        k, v = k[: int(cu_k[-1])], v[: int(cu_k[-1])]
    out = attention_varlen(
        q, k, v, cu_q, cu_k, causal=True, window=window, max_q=max_q, max_k=max_k, **options
    )
    assert isinstance(out, torch.Tensor)
    for sampler in samplers():
        if window is None or leaf is None:  # else leaves begin before the keys that are left
            sampler.packed_attention(module, (q, k, v, out), (cu_q, cu_k), window, options)
    if out.shape[0] < total:
        out = torch.nn.functional.pad(out, (0, 0, 0, 0, 0, total - out.shape[0]))
    return out[None]


def _of(value: Any, kind: str) -> Any:
    """What a model with layers of several kinds has one of for each."""
    return value[kind] if isinstance(value, dict) else value


def _aligned(
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    positions: torch.Tensor | None,
    leaf: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys of a window that has rolled on, each request's behind as many free places as its first
    leaf has lost; see `attention.place`. Nothing waits for the device.
    """
    if positions is None:
        raise UncoveredError(
            "continuous batching", "the model does not hand positions to its attention, and on "
            "this device bits depend on them where a window rolls",
            remedy="Use generate() with a cache that keeps all tokens.",
        )  # fmt: skip
    first = positions.reshape(-1)[cu_q[:-1].long().clamp(max=positions.numel() - 1)]
    lens, q_lens = cu_k.diff(), cu_q.diff()
    lead = ((first + q_lens - lens).clamp(min=0) % leaf).to(cu_k.dtype)
    moved = torch.cat([cu_k[:1], (lens + lead).cumsum(0)]).to(cu_k.dtype)
    places = torch.arange(k.shape[0] + (leaf - 1) * lens.numel(), device=k.device)
    owner = (torch.searchsorted(moved[1:].contiguous(), places, right=True)).clamp(
        max=lens.numel() - 1
    )
    source = (places - moved[owner] - lead[owner] + cu_k[owner]).clamp(0, k.shape[0] - 1)
    return k[source], v[source], moved
