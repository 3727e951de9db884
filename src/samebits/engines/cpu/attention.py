"""Launches the attention kernels: lays the call out as the flat list csrc/bind_attention.cpp reads.

Everything here has been validated by ops/attention; nothing is checked again. The portable contract
differs in one thing: probabilities are not rounded to the type of the values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from samebits.engines import family, watch
from samebits.engines.cpu import DTYPE_CODE, _cpu
from samebits.engines.cpu.numbers import written

_LOG2E = math.log2(math.e)
_NO_LSE = (0, 0, 0, 0)
_NO_MASK = (0, 0, 0, 0, 0)
_attention = _cpu.attention


@dataclass(frozen=True)
class Sequences:
    """How packed tensors are cut into sequences. All tensors are contiguous int64.

    Attributes:
        count: number of sequences.
        q_len: the longest query.
        q_starts: [count] position of each sequence's first query row.
        cu_q: [count + 1] cumulative query lengths, or None for dense queries.
        cu_k: [count + 1] cumulative KV lengths, or None.
        block_table: [count, pages] page numbers of a paged cache, or None.
        kv_lens: [count] KV lengths, with `block_table`.
        page: slots a page, with `block_table`.
    """

    count: int
    q_len: int
    q_starts: torch.Tensor
    cu_q: torch.Tensor | None = None
    cu_k: torch.Tensor | None = None
    block_table: torch.Tensor | None = None
    kv_lens: torch.Tensor | None = None
    page: int = 0


def _pointer(x: torch.Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _rows(x: torch.Tensor) -> torch.Tensor:
    """`x` with a contiguous last dimension: the only stride the kernels do not take."""
    return x if x.stride(-1) == 1 or x.size(-1) <= 1 else x.contiguous()


def dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    causal: bool = False,
    q_start: int = 0,
    q_starts: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention over [B, H, T, D] tensors of any strides; see `samebits.ops.attention`.

    Returns:
        The result [B, Hq, Tq, Dv], laid out like [B, Tq, Hq, Dv] in memory when `q` is, and the
        logsumexp [B, Hq, Tq] in fp32 or None.
    """
    batch, heads, q_len, d = q.shape
    _, kv_heads, kv_len, dv = v.shape
    qs, ks, vs = q.stride(), k.stride(), v.stride()
    if not qs[3] == ks[3] == vs[3] == 1:
        q, k, v = _rows(q), _rows(k), _rows(v)
        qs, ks, vs = q.stride(), k.stride(), v.stride()
    if qs[1] < qs[2]:
        out = q.new_empty((batch, q_len, heads, dv)).transpose(1, 2)
        os = (q_len * heads * dv, dv, heads * dv)
    else:
        out = q.new_empty((batch, heads, q_len, dv))
        os = (heads * q_len * dv, q_len * dv, dv)
    logsum = None
    log_part = _NO_LSE
    if lse:
        logsum = q.new_empty((batch, heads, q_len), dtype=torch.float32)
        log_part = (logsum.data_ptr(), heads * q_len, q_len, 1)
    mask_part: tuple[int, ...] = _NO_MASK
    masked_at = 0.0
    if mask is not None:
        mask, masked_at = _mask_rows(mask)
        mask = mask.expand(batch, heads, q_len, kv_len)
        kind = 1 if mask.dtype is torch.bool else 2
        mask_part = (kind, mask.data_ptr(), *mask.stride()[:3])
    a, b = (scale * _LOG2E, 0.0) if softcap is None else (scale / softcap, softcap * _LOG2E)
    wrong = _attention(
        [
            DTYPE_CODE[q.dtype], batch, heads, kv_heads, q_len, kv_len, d, dv,
            q.data_ptr(), qs[0], qs[1], qs[2], k.data_ptr(), ks[0], ks[1], ks[2],
            v.data_ptr(), vs[0], vs[1], vs[2], out.data_ptr(), *os, *log_part,
            causal, window or 0, q_start, 0 if q_starts is None else q_starts.data_ptr(),
            *mask_part, 0 if sinks is None else sinks.data_ptr(), 0, 0, 0, 0, 0, 0,
            family.portable(),
        ],
        a, b, masked_at,
    )  # fmt: skip
    if wrong:
        watch.report(wrong)
    return written(out), None if logsum is None else written(logsum)


def store(x: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> bool:
    """Copies rows of keys or values to slots of a paged cache; False if a slot is outside of it.

    Args:
        x: [tokens, heads, D].
        cache: [pages, page, heads, D] of x's dtype, any strides but the last, which is 1.
        slots: [tokens] int64: page number times page size plus place; a negative one is skipped.
    """
    x = _rows(x)
    tokens, heads, d = x.shape
    pages, page = cache.shape[:2]
    to_page, to_slot, to_head, _ = cache.stride()
    return _cpu.cache_store(
        x.element_size(), tokens, heads, d, x.data_ptr(), x.stride(0), x.stride(1),
        slots.data_ptr(), cache.data_ptr(), pages, page, to_page, to_slot, to_head,
    )  # fmt: skip


def _mask_rows(mask: torch.Tensor) -> tuple[torch.Tensor, float]:
    """A mask with contiguous rows, an additive one in fp32, and the value at which it masks."""
    lowest = 0.0
    if mask.dtype is not torch.bool:
        lowest = torch.finfo(mask.dtype).min
        if mask.dtype is torch.float64:  # rounds to -Inf or to the lowest fp32 below this
            lowest = torch.finfo(torch.float32).min
        mask = mask.to(torch.float32)
    return _rows(mask), lowest


def packed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sequences: Sequences,
    *,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    lse: bool,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention over packed queries [total, H, D]; K and V packed alike, or pages of a cache.

    Args:
        out: where the result goes: its shape and dtype, any strides but the last, which is 1.

    Returns:
        The result [total, Hq, Dv] and the logsumexp [Hq, total] in fp32 or None.
    """
    q, k, v = (_rows(x) for x in (q, k, v))
    total, heads, d = q.shape
    paged = sequences.block_table is not None
    kv_heads, dv = k.size(-2), v.size(-1)
    if out is None:
        out = q.new_empty((total, heads, dv))
    logsum = q.new_empty((heads, total), dtype=torch.float32) if lse else None

    def strides(x: torch.Tensor) -> tuple[int, int, int]:
        return (x.stride(0) if paged else 0, x.stride(-2), x.stride(-3))

    table = sequences.block_table
    a, b = (scale * _LOG2E, 0.0) if softcap is None else (scale / softcap, softcap * _LOG2E)
    wrong = _attention(
        [
            DTYPE_CODE[q.dtype], sequences.count, heads, kv_heads, sequences.q_len, 0, d, dv,
            q.data_ptr(), 0, q.stride(1), q.stride(0), k.data_ptr(), *strides(k),
            v.data_ptr(), *strides(v), out.data_ptr(), 0, out.stride(1), out.stride(0),
            *((0, 0, 0, 0) if logsum is None else (logsum.data_ptr(), 0, total, 1)),
            causal, window or 0, 0, sequences.q_starts.data_ptr(),
            0, 0, 0, 0, 0, _pointer(sinks), _pointer(sequences.cu_q), _pointer(sequences.cu_k),
            _pointer(table), 0 if table is None else table.stride(0), sequences.page,
            _pointer(sequences.kv_lens), family.portable(),
        ],
        a, b, 0.0,
    )  # fmt: skip
    if wrong:
        watch.report(wrong)
    return written(out), None if logsum is None else written(logsum)


watch.offer(__name__, dense, packed)
