"""The attention function: what transformers calls in every layer, for all of its layouts."""

from __future__ import annotations

import functools
from typing import Any

import torch

from samebits import mode
from samebits.contract import AttentionContract
from samebits.errors import SwitchError, UncoveredError
from samebits.guard.receipts.operands import samplers
from samebits.integrations.transformers import packed
from samebits.integrations.transformers.masks import Mask, Rule
from samebits.ops import attention
from samebits.ops.attention.padding import without_padding
from samebits.ops.logprobs import kept_apart
from samebits.plan import contract_of

OP = 'attention of "samebits"'


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with `samebits.ops.attention`, as transformers' AttentionInterface wants it.

    Args:
        query: [B, Hq, T, D]; with a paged cache [1, Hq, total, D].
        key: [B, Hkv, S, D], not repeated; value: [B, Hkv, S, Dv].
        attention_mask: a `Mask`, a bool or additive tensor [B, 1, T, S], or None: causal if the
            module says so and T > 1, else all keys are seen.
        position_bias: [B or 1, Hq, T, S], added to the scores.
        softcap, s_aux: cap and sinks, as in `samebits.ops.attention`.
        kwargs: ``cache`` and the lengths of sequences, where continuous batching runs.

    Returns:
        ([B, T, Hq, Dv], None).

    Raises:
        SwitchError: the switch is off, so that other layers would break the promise.
        UncoveredError: dropout, or a mask that cannot be told apart from its padding on a GPU.
    """
    if not mode.is_on():
        raise SwitchError(
            'attn_implementation="samebits" while the switch is off: norms and linear layers would '
            "still follow the batch. Call samebits.integrations.transformers.enable(model) or "
            "samebits.enable()"
        )
    if dropout:
        raise UncoveredError(
            OP, "dropout draws from one generator for the whole batch",
            remedy="Set attention_dropout=0 in the model's config, or call model.eval().",
        )  # fmt: skip
    scale = getattr(module, "scaling", None) if scaling is None else scaling
    options: dict[str, Any] = {"scale": scale, "softcap": softcap, "sinks": s_aux}
    if packed.is_paged(kwargs):
        out = packed.attend(module, query, key, value, kwargs, options, leaf_of(query, value))
        return out, None
    if isinstance(attention_mask, Mask) and position_bias is None:
        out = _by_rule(query, key, value, attention_mask.rule, options)
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        out = _by_mask(query, key, value, attention_mask, position_bias, causal, options)
    for sampler in samplers():
        if position_bias is None:
            visible = functools.partial(_visible, module, query, key, attention_mask, is_causal)
            sampler.attention(module, (query, key, value, out), visible, options)
    return out.transpose(1, 2).contiguous(), None


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """`attention_forward` while continuous batching runs: the model is given no masks then.

    Raises:
        SwitchError: an ordinary call in the meantime, whose padding would not be seen.
    """
    if not packed.is_paged(kwargs):
        raise SwitchError(
            "the model was called while continuous batching uses it; wait until its manager has "
            "stopped, or load the model twice"
        )
    return attention_forward(module, query, key, value, None, **kwargs)


def _visible(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool | None,
    row: int,
    column: int,
) -> tuple[int, torch.Tensor] | None:
    """The first key of a row's sequence, and which keys [S] a query sees, for an audit; None where
    more than the mask's bits would have to be kept.
    """
    start, keys = 0, key.shape[2]
    if isinstance(mask, Mask):
        rule = mask.rule
        moved = rule.kv_offset and leaf_of(query, key) is not None  # leaves start elsewhere
        if moved or rule.holes or (rule.pattern and rule.pattern.packed is not None):
            return None
        first = 0 if rule.starts is None else int(rule.starts[row])
        start = max(0, first - rule.kv_offset)
        return start, rule.dense()[row, 0, column, :keys]
    if mask is not None:
        return (0, mask[row, 0, column, :keys]) if mask.dtype is torch.bool else None
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    last = keys - query.shape[2] + column if causal else keys - 1
    return start, torch.arange(keys) <= last


@functools.lru_cache(maxsize=64)
def _leaf(dtype: torch.dtype, kv: torch.dtype, d: int, dv: int, device: int | None) -> int | None:
    kind = "cpu"
    if device is not None:
        from samebits.engines.triton import device_class

        kind = device_class(device)
    contract = contract_of(
        "attention", dtype=dtype, head_dim=d, value_dim=dv, kv_dtype=None if kv is dtype else kv,
        device=kind,
    )  # fmt: skip
    assert isinstance(contract, AttentionContract)
    return contract.leaf if contract.positions == "absolute" else None


def leaf_of(query: torch.Tensor, value: torch.Tensor) -> int | None:
    """Keys in a leaf, where leaves are cut at positions; None where they count seen keys.

    Only in the first case do bits depend on where a sequence's keys lie in their tensor.
    """
    device = (query.device.index or 0) if query.is_cuda else None
    return _leaf(query.dtype, value.dtype, query.shape[-1], value.shape[-1], device)


def _by_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule, options: dict[str, Any]
) -> torch.Tensor:
    """[B, Hq, T, Dv] for a mask that is known by its rule."""
    found, leaf = rule.pattern, leaf_of(q, v)
    if found is None or (rule.holes and leaf is not None):
        if leaf is not None and (rule.holes or rule.kv_offset):
            raise UncoveredError(
                OP, "padding between real tokens, or a rolling cache under a mask of the model's "
                "own, moves positions, and on this device bits with them",
                remedy="Pad on one side only, and use a cache that keeps all tokens.",
            )  # fmt: skip
        return _by_mask(q, k, v, rule.dense(), None, False, options)
    options = {**options, "causal": found.causal, "window": found.window}
    if found.packed is not None:
        return _by_segment(q, k, v, rule, options)
    if leaf is None:
        start, real = rule.q_offset - rule.kv_offset, rule.real
    else:
        k, v, start, real = place(rule, k, v, leaf)
    if isinstance(start, torch.Tensor):
        start = start.expand(q.shape[0]).contiguous()
    mask = None if real is None else real[:, None, None, :]
    out = attention(q, k, v, q_start=start, mask=mask, **options)
    assert isinstance(out, torch.Tensor)
    return out


def place(
    rule: Rule, k: torch.Tensor, v: torch.Tensor, leaf: int
) -> tuple[torch.Tensor, torch.Tensor, int | torch.Tensor, torch.Tensor | None]:
    """Keys and values moved to where every sequence's position 0 stands on the edge of a leaf.

    A sequence's own leaves then are those that it has alone: padding on its left is gone, and a
    cache that has forgotten its oldest keys is put behind as many free places as its first leaf has
    lost. What stands there is never seen: the window of such a cache ends before.

    Args:
        rule: its pattern is known and it has no holes.
        k: [B, Hkv, S, D]; v: [B, Hkv, S, Dv].

    Returns:
        k, v [B, Hkv, S', ...], the position of the first query, an int or [B], and the keys that
        are not padding, [B, S'], or None where causality hides the padding.
    """
    assert rule.pattern is not None
    offset, kept = rule.q_offset, rule.kv_offset
    if rule.starts is None:
        lead = kept % leaf
        if lead:
            k, v = (torch.nn.functional.pad(x, (0, 0, lead, 0)) for x in (k, v))
        return k, v, offset - kept + lead, rule.real
    start = rule.starts
    oldest = (kept - start).clamp(min=0)  # position of the first key that is still there
    leads = oldest % leaf
    places = torch.arange(k.shape[2] + (leaf - 1 if kept else 0), device=k.device)
    source = places - leads[:, None] + (start - kept).clamp(min=0)[:, None]  # [B, S']
    inside = source.clamp(0, k.shape[2] - 1)
    k, v = (x.gather(2, inside[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
            for x in (k, v))  # fmt: skip
    real = None
    if not rule.pattern.causal:
        assert rule.real is not None
        real = rule.real.gather(1, inside) & (source == inside)
    return k, v, offset - start - oldest + leads, real


def _by_segment(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule, options: dict[str, Any]
) -> torch.Tensor:
    """Sequences packed into rows: each is computed as if it stood alone, with gradients."""
    kept_apart()
    rows = []
    for b, segments in enumerate(rule.segments()):
        parts = [
            attention(*(x[b : b + 1, :, i:j] for x in (q, k, v)), q_start=0, **options)
            for i, j in segments
        ]
        rows.append(torch.cat(parts, 2))  # type: ignore[arg-type]
    return torch.cat(rows)


def _by_mask(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    causal: bool,
    options: dict[str, Any],
) -> torch.Tensor:
    """[B, Hq, T, Dv] for a mask in bits or numbers, or for none."""
    causal = causal and mask is None and q.shape[2] > 1
    if mask is not None:
        mask = mask[..., : k.shape[2]]
    if bias is not None:
        bias = bias[..., : k.shape[2]]
        if mask is None:
            mask = bias
        elif mask.dtype is torch.bool:
            mask = torch.where(mask, bias, torch.finfo(bias.dtype).min)
        else:
            mask = bias + mask
    if mask is not None and leaf_of(q, v) is not None:
        k, v, mask = without_padding(k, v, mask)
    out = attention(q, k, v, q_start=0, causal=causal, mask=mask, **options)
    assert isinstance(out, torch.Tensor)
    return out
