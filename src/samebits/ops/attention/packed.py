"""Attention over packed sequences: varlen tensors and paged KV caches. Same contract as dense."""

from __future__ import annotations

import math

import torch

from samebits.engines.cpu import attention as engine
from samebits.errors import DTypeError, ShapeError, UncoveredError
from samebits.ops.attention import checks, paged
from samebits.ops.attention.autograd import needs_grad
from samebits.ops.attention.dispatch import operands


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    q_start: torch.Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
    max_q: int | None = None,
    max_k: int | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of sequences that lie one after the other, the layout of FlashAttention's varlen.

    Each sequence gets the bits that `samebits.ops.attention` gives it alone.

    Args:
        q: [total_q, Hq, D], fp32 (CPU only), bf16 or fp16, any strides.
        k: [total_k, Hkv, D]; v: [total_k, Hkv, Dv]; same dtype, or on a GPU float8_e4m3fn.
        cu_q: [N + 1] cumulative query lengths, int32 or int64, from 0 to total_q.
        cu_k: [N + 1] cumulative KV lengths, from 0 to total_k.
        q_start: [N] position of each sequence's first row; None puts the rows at the end of the
            keys (kv_len - q_len), as FlashAttention does.
        max_q, max_k: the longest query and the longest sequence, or more. Only a GPU needs them,
            and only while a CUDA graph is captured: else they are read from the offsets.
        out: [total_q, Hq, Dv] of q's dtype, dense columns, to write to and return, in memory that
            no operand has; None: a new one.
        scale, causal, window, softcap, sinks, k_scale, v_scale, return_lse: as in
            `samebits.ops.attention`.

    On a GPU the values of the offsets are the caller's responsibility: they are not read back.

    Returns:
        [total_q, Hq, Dv] in q's dtype, and with `return_lse` the logsumexp [Hq, total_q] in fp32.

    Raises:
        ShapeError, DTypeError: as `samebits.ops.attention`; offsets that do not fit; an `out` that
            shares memory with q, k or v.
        UncoveredError: a tensor that needs a gradient (use the dense form to train).
    """
    op = "attention_varlen"
    (q, k, v), scale = _common(op, q, k, v, 3, scale, window, softcap, k_scale, v_scale)
    if k.size(0) != v.size(0):
        raise ShapeError(f"{op}: k has {k.size(0)} rows but v has {v.size(0)}")
    if q.is_cuda:
        return _on_gpu(
            op, q, k, v, cu_q, q_start, max_q, scale, causal, window, softcap, sinks, k_scale,
            v_scale, return_lse, out, cu_k=cu_k, max_k=max_k,
        )  # fmt: skip
    cu_q = checks.offsets(op, "cu_q", cu_q, q.size(0))
    cu_k = checks.offsets(op, "cu_k", cu_k, k.size(0))
    if cu_q.numel() != cu_k.numel():
        raise ShapeError(f"{op}: cu_q names {cu_q.numel() - 1} sequences, cu_k {cu_k.numel() - 1}")
    starts = _starts(op, q_start, cu_k.diff() - cu_q.diff())
    longest = int(cu_q.diff().max()) if cu_q.numel() > 1 else 0
    sequences = engine.Sequences(cu_q.numel() - 1, longest, starts, cu_q=cu_q, cu_k=cu_k)
    return _launch(op, q, k, v, sequences, scale, causal, window, softcap, sinks, return_lse, out)


def attention_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_q: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    q_start: torch.Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
    max_q: int | None = None,
    max_k: int | None = None,
    total_k: int | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention over a paged KV cache (Kwon et al., PagedAttention, 2023), any page size.

    Each sequence gets the bits that `samebits.ops.attention` gives it alone with contiguous K and
    V. Unused slots and pages are never read.

    Args:
        q: [total_q, Hq, D]: the new rows of all sequences, one after the other.
        k_cache: [pages, page_size, Hkv, D]; v_cache: [pages, page_size, Hkv, Dv]; dtypes as
            in `attention_varlen`.
        block_table: [N, max_pages] int32 or int64: the pages of each sequence in order.
        seq_lens: [N] KV length of each sequence, the new rows' keys included.
        cu_q: [N + 1] cumulative query lengths.
        q_start: [N] position of each sequence's first row; None means seq_lens - q_len.
        max_q: the longest query, or more, as in `attention_varlen`.
        max_k: the longest of seq_lens, or more; None: what block_table can hold. Only a GPU uses
            it, and `total_k`: fewer programs are started, with the same bits.
        total_k: the sum of seq_lens, or more, if the host knows it: long chunks of prompts then
            have their keys copied side by side, which is faster.
        out: as in `attention_varlen`.
        scale, causal, window, softcap, sinks, k_scale, v_scale, return_lse: as in
            `samebits.ops.attention`.

    On a GPU the values of lengths, offsets and pages are the caller's responsibility: they are not
    read back, and a captured graph serves every length that its table can hold.

    Returns:
        [total_q, Hq, Dv] in q's dtype, and with `return_lse` the logsumexp [Hq, total_q] in fp32.

    Raises:
        ShapeError: also for a page number outside the cache or a table too short.
        DTypeError, UncoveredError: as `attention_varlen`.
    """
    op = "attention_paged"
    (q, k_cache, v_cache), scale = _common(
        op, q, k_cache, v_cache, 4, scale, window, softcap, k_scale, v_scale
    )
    if k_cache.shape[:2] != v_cache.shape[:2]:
        raise ShapeError(
            f"{op}: k_cache has pages {tuple(k_cache.shape[:2])} but v_cache "
            f"{tuple(v_cache.shape[:2])}"
        )
    if q.is_cuda:
        return _on_gpu(
            op, q, k_cache, v_cache, cu_q, q_start, max_q, scale, causal, window, softcap, sinks,
            k_scale, v_scale, return_lse, out, max_k=max_k, kv_lens=seq_lens, table=block_table,
            total_k=total_k,
        )  # fmt: skip
    step = paged.step(
        op, block_table, seq_lens, cu_q, rows=q.size(0), pages=k_cache.size(0),
        page=k_cache.size(1), q_start=q_start,
    )  # fmt: skip
    return _launch(
        op,
        q,
        k_cache,
        v_cache,
        step.sequences,
        scale,
        causal,
        window,
        softcap,
        sinks,
        return_lse,
        out,
    )


def _common(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_dims: int,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    k_scale: torch.Tensor | float | None,
    v_scale: torch.Tensor | float | None,
) -> tuple[checks.Operands, float]:
    """What both layouts check alike; the operands and the scale to use."""
    q, k, v = operands(op, q, k, v)
    if not q.is_cuda:
        checks.no_scales(op, k_scale, v_scale)
    if q.dim() != 3 or k.dim() != kv_dims or v.dim() != kv_dims:
        raise ShapeError(
            f"{op}: q needs 3 and k, v {kv_dims} dimensions, not {tuple(q.shape)}, "
            f"{tuple(k.shape)}, {tuple(v.shape)}"
        )
    checks.head_dims(op, q, k)
    if k.size(-2) != v.size(-2):
        raise ShapeError(f"{op}: k has {k.size(-2)} heads but v has {v.size(-2)}")
    if q.size(1) != k.size(-2):
        checks.heads(op, q.size(1), k.size(-2), True)
    if scale is None:
        scale = 1.0 / math.sqrt(q.size(-1)) if q.size(-1) else 1.0
    checks.options(op, window, softcap, scale)
    if needs_grad(q, k, v):
        raise UncoveredError(
            op, "packed attention has no backward", remedy="Use samebits.ops.attention to train."
        )
    return (q, k, v), scale


def _starts(op: str, q_start: torch.Tensor | None, default: torch.Tensor) -> torch.Tensor:
    if q_start is None:
        return default.contiguous()
    starts = checks.integers(op, "q_start", q_start, 1)
    if starts.shape != default.shape:
        raise ShapeError(f"{op}: q_start {tuple(starts.shape)} is not one for each sequence")
    return starts


def _on_gpu(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    q_start: torch.Tensor | None,
    max_q: int | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    k_scale: torch.Tensor | float | None,
    v_scale: torch.Tensor | float | None,
    return_lse: bool,
    out: torch.Tensor | None,
    *,
    cu_k: torch.Tensor | None = None,
    max_k: int | None = None,
    kv_lens: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    total_k: int | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Both layouts on a GPU: lengths and tables stay on the device."""
    from samebits.ops.attention import cuda

    def integers(name: str, x: torch.Tensor | None, dim: int = 1) -> torch.Tensor | None:
        return None if x is None else cuda.integers(op, name, x, dim, q.device)

    cu_q = cuda.integers(op, "cu_q", cu_q, 1, q.device)
    count = cu_q.numel() - 1
    cu_k, starts = integers("cu_k", cu_k), integers("q_start", q_start)
    kv_lens, table = integers("seq_lens", kv_lens), integers("block_table", table, 2)
    sizes = [(cu_k, count + 1), (starts, count), (kv_lens, count), (table, count)]
    if count < 0 or any(x is not None and x.size(0) != size for x, size in sizes):
        raise ShapeError(f"{op}: cu_q names {count} sequences, other arguments another number")
    heads = k.size(-2)
    if table is not None:
        held = table.size(1) * k.size(1)
        longest_k = held if max_k is None else min(max_k, held)
    else:
        assert cu_k is not None
        longest_k = cuda.longest(op, "max_k", max_k, cu_k)
    sequences = cuda.Sequences(
        count, cuda.longest(op, "max_q", max_q, cu_q), longest_k, cu_q, cu_k, kv_lens, table,
        starts, total_k,
    )  # fmt: skip
    out, lse = cuda.packed(
        q, k, v, sequences, _checked(op, out, q, k, v), scale=scale, causal=causal, window=window,
        softcap=softcap,
        sinks=None if sinks is None else checks.sink_logits(op, sinks, q.size(1), q.device),
        k_scale=cuda.scales(op, "k_scale", k_scale, q, k, heads),
        v_scale=cuda.scales(op, "v_scale", v_scale, q, v, heads), lse=return_lse,
    )  # fmt: skip
    return out if lse is None else (out, lse)


def _launch(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sequences: engine.Sequences,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    return_lse: bool,
    out: torch.Tensor | None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    logits = None if sinks is None else checks.sink_logits(op, sinks, q.size(1))
    result, lse = engine.packed(
        q, k, v, sequences, scale=scale, causal=causal, window=window, softcap=softcap,
        sinks=logits, lse=return_lse, out=_checked(op, out, q, k, v),
    )  # fmt: skip
    return result if lse is None else (result, lse)


def _checked(
    op: str, out: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor | None:
    """`out`, if the result can be written there."""
    if out is None:
        return None
    shape = (*q.shape[:2], v.size(-1))
    if out.dtype is not q.dtype or out.device != q.device:
        raise DTypeError(f"{op}: out is {out.dtype} on {out.device}, q {q.dtype} on {q.device}")
    if out.shape != shape or (out.stride(-1) != 1 and shape[-1] > 1):
        raise ShapeError(
            f"{op}: out must be {shape} with its columns side by side, not {tuple(out.shape)} of "
            f"strides {out.stride()}"
        )
    checks.writable(op, "out", out)
    checks.apart(op, out, q, k, v)
    return out
