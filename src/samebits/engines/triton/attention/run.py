"""Launches attention by a contract and a schedule. Everything was checked by ops/attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from samebits.contract import AttentionContract
from samebits.engines.triton.attention.fold import fold_kernel
from samebits.engines.triton.attention.forward import attention_kernel
from samebits.engines.triton.attention.schedule import AttentionSchedule
from samebits.engines.triton.launch import launch

_LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Sequences:
    """How packed tensors are cut into sequences; all on the device, int32 or int64.

    Attributes:
        count: number of sequences.
        longest_q: rows of the longest query, or more.
        longest_kv: keys of the longest sequence, or more.
        cu_q: [count + 1] cumulative query lengths.
        cu_k: [count + 1] cumulative KV lengths, or None.
        kv_lens: [count] KV lengths of a paged cache, or None.
        table: [count, pages] page numbers of a paged cache, or None.
        starts: [count] position of each sequence's first row; None puts the rows at the end.
    """

    count: int
    longest_q: int
    longest_kv: int
    cu_q: torch.Tensor
    cu_k: torch.Tensor | None = None
    kv_lens: torch.Tensor | None = None
    table: torch.Tensor | None = None
    starts: torch.Tensor | None = None


@dataclass(frozen=True)
class Options:
    """What changes the mathematics; see `samebits.ops.attention`."""

    scale: float
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    lse: bool = False


Result = tuple[torch.Tensor, "torch.Tensor | None"]


def dense(
    contract: AttentionContract,
    schedule: AttentionSchedule,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    options: Options,
    *,
    q_start: int = 0,
    starts: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    masked_at: float = -math.inf,
) -> Result:
    """Attention over [B, H, T, D] tensors with contiguous columns.

    Args:
        q_start, starts: position of row 0, or one for each sequence.
        mask: bool or floating, expanded to [B, Hq, T, S].
        masked_at: the value from which down an additive mask hides a key.

    Returns:
        [B, Hq, T, Dv], laid out like [B, T, Hq, Dv] in memory when `q` is, and the logsumexp
        [B, Hq, T] in fp32 or None.
    """
    batch, heads, q_len, _ = q.shape
    dv = v.size(3)
    if q.stride(1) < q.stride(2):
        out = q.new_empty((batch, q_len, heads, dv)).transpose(1, 2)
    else:
        out = q.new_empty((batch, heads, q_len, dv))
    lse = q.new_empty((batch, heads, q_len), dtype=torch.float32) if options.lse else None
    strides = [x.stride()[:3] for x in (q, k, v, out)]
    _run(
        contract, schedule, q, k, v, out, lse, options, "dense", batch, q_len, k.size(2),
        k.size(1), strides, (heads * q_len, q_len, 1), q_start=q_start, starts=starts, mask=mask,
        masked_at=masked_at,
    )  # fmt: skip
    return out, lse


def packed(
    contract: AttentionContract,
    schedule: AttentionSchedule,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    options: Options,
    sequences: Sequences,
) -> Result:
    """Attention over packed queries [total, Hq, D]; K and V packed alike, or pages of a cache.

    Returns:
        [total, Hq, Dv], and the logsumexp [Hq, total] in fp32 or None.
    """
    total, heads, _ = q.shape
    out = q.new_empty((total, heads, v.size(-1)))
    lse = q.new_empty((heads, total), dtype=torch.float32) if options.lse else None
    paged = sequences.table is not None
    strides = [
        (x.stride(0) if paged and x is not q else 0, x.stride(-2), x.stride(-3)) for x in (q, k, v)
    ]
    _run(
        contract, schedule, q, k, v, out, lse, options, "paged" if paged else "varlen",
        sequences.count, sequences.longest_q, sequences.longest_kv, k.size(-2),
        [*strides, (0, out.stride(1), out.stride(0))], (0, total, 1), sequences=sequences,
        starts=sequences.starts,
    )  # fmt: skip
    return out, lse


def _run(
    contract: AttentionContract,
    schedule: AttentionSchedule,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    options: Options,
    keys: str,
    batch: int,
    q_len: int,
    kv_len: int,
    kv_heads: int,
    strides: list[tuple[int, ...]],
    lse_strides: tuple[int, int, int],
    *,
    q_start: int = 0,
    starts: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    masked_at: float = -math.inf,
    sequences: Sequences | None = None,
) -> None:
    q_heads, d, dv = out.size(1), q.size(-1), out.size(-1)
    if out.numel() == 0:
        return
    cap = options.softcap
    a, b = (options.scale * _LOG2E, 0.0) if cap is None else (options.scale / cap, cap * _LOG2E)
    if a < 0:
        q, a = -q, -a  # exact, and so is every score's change of sign
        strides = [_like(q, strides[0]), *strides[1:]]
    group = q_heads // kv_heads
    tiles = -(-q_len * group // schedule.block_m)
    leaves = -(-kv_len // contract.leaf)
    splits = schedule.splits(tiles * batch * kv_heads, leaves)
    rows = out.numel() // dv
    partial = stats = None
    pdl = splits > 1 and schedule.pdl and q.is_cuda
    if splits > 1:
        partial = q.new_empty((rows, leaves, dv), dtype=torch.float32)
        stats = q.new_empty((rows, leaves, 4), dtype=torch.float32)  # m, l, and the fold's factors
    s = sequences
    where = (None,) * 4 if s is None else (s.cu_q, s.cu_k, s.kv_lens, s.table)
    page = 0 if where[3] is None else k.size(1)
    window = options.window or 0
    common: dict[str, Any] = {
        "DV": dv, "GROUP": group, "KEYS": keys, "CAUSAL": options.causal, "WINDOW": window > 0,
        "SINKS": options.sinks is not None, "LSE": lse is not None,
        "V_SCALE": options.v_scale is not None,
    }  # fmt: skip
    launch(
        attention_kernel, (tiles * splits * batch * kv_heads,), q, k, v, out, lse, partial, stats,
        *where, starts, mask, options.sinks, options.k_scale, options.v_scale, a, b, masked_at,
        q_start, q_len, kv_len, batch, kv_heads, tiles, splits, leaves, window, contract.leaf,
        0 if where[3] is None else where[3].stride(0),
        *strides[0], *strides[1], *strides[2], *strides[3], *lse_strides,
        *((0, 0, 0, 0) if mask is None else mask.stride()),
        **common, D=d, BLOCK_D=_tile(d), BLOCK_DV=_tile(dv), PAGE=page,
        MASK=0 if mask is None else 1 if mask.dtype is torch.bool else 2, SOFTCAP=cap is not None,
        K_SCALE=options.k_scale is not None, SPAN=schedule.span,
        BLOCK_M=schedule.block_m, ONE_POSITION=q_len == 1, SPLIT=splits > 1, PDL=pdl,
        STAGES=schedule.stages, num_warps=schedule.warps, num_stages=schedule.stages,
    )  # fmt: skip
    if splits > 1:
        launch(
            fold_kernel, (batch * q_len * q_heads, -(-dv // schedule.columns)), partial, stats,
            out, lse, *where[:3], starts, options.sinks, options.v_scale, q_start, q_len, kv_len,
            q_heads, q_len, leaves, window, contract.leaf, *strides[3], *lse_strides, **common,
            COLUMNS=schedule.columns, BATCH=schedule.batch, PDL=pdl, num_warps=1, pdl=pdl,
        )  # fmt: skip


def _tile(d: int) -> int:
    return max(16, 1 << (d - 1).bit_length())


def _like(q: torch.Tensor, strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense copy of q in the order in which the kernel takes them."""
    return q.stride()[:3] if q.dim() == 4 else (0, q.stride(1), q.stride(0))
