"""Attention by IEEE fp32 operations alone: the portable contract, on the CUDA cores.

The form "ceil" of `samebits.contract.AttentionContract`: a leaf is 512 keys that a row sees, its
maximum is that of all of them, so a leaf is walked twice: for its maximum, then for its weights. A
step in which every row sees every key goes through dots, which are chains of fma with k ascending;
in another one the keys are taken one by one, so that what a row does not see touches nothing, be it
NaN. A program owns BLOCK_M rows of one KV head, as in `forward`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from samebits.engines.triton.attention.keys import COUNTS, LISTS, sequence
from samebits.engines.triton.attention.softmax import (
    _LN2,
    _LOG2E,
    capped,
    flushed_exp2,
    power,
    with_bias,
)
from samebits.engines.triton.functions import chips_nan, log
from samebits.engines.triton.launch import launch

#: Keys of a step, and head dimensions of a dot: dots of fma are unrolled.
_STEP = tl.constexpr(32)
_DEPTH = tl.constexpr(32)
#: Rows of a program where there are enough of them.
_BLOCK_M = 32


@triton.jit
def _places(keys, table, page_stride, row_stride, inside, PAGE: tl.constexpr):
    """Offsets of the rows of `keys` in K or V, in elements."""
    if PAGE == 0:
        at = keys.to(tl.int64) * row_stride
    else:
        page = tl.load(table + keys // PAGE, inside, 0).to(tl.int64)
        at = page * page_stride + (keys % PAGE).to(tl.int64) * row_stride
    return at


@triton.jit
def _seen_scores(
    q, q_rows, k, table, mask_rows, start, low, high, valid, skp, sks, sms, a, cap, masked_at,
    D: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Exponents x [M, STEP] of the keys from `start` on, and which of them are in a row's leaf.

    Args:
        low, high: [M], the keys of each row's leaf.
    """
    keys = start + tl.arange(0, _STEP)
    seen = (keys[None, :] >= low[:, None]) & (keys[None, :] < high[:, None])
    some = (keys >= tl.min(low, axis=0)) & (keys < tl.max(high, axis=0))
    places = _places(keys, table, skp, sks, some, PAGE)
    s = tl.zeros((low.shape[0], _STEP), tl.float32)
    for first in tl.static_range(0, D, _DEPTH):
        d = first + tl.arange(0, _DEPTH)
        q_part = tl.load(q + q_rows[:, None] + d[None, :], valid[:, None] & (d < D)[None, :], 0.0)
        k_part = tl.load(k + places[None, :] + d[:, None], some[None, :] & (d < D)[:, None], 0.0)
        s = tl.dot(q_part.to(tl.float32), k_part.to(tl.float32), s, input_precision="ieee")
    x = s * a
    if SOFTCAP:
        x = capped(x, cap)
    if MASK == 1:
        allowed = tl.load(mask_rows[:, None] + keys[None, :] * sms, seen, 0)
        seen = seen & (allowed != 0)
    elif MASK == 2:
        bias = tl.load(mask_rows[:, None] + keys[None, :] * sms, seen, 0.0).to(tl.float32)
        seen = seen & ~(bias <= masked_at)
        x = with_bias(x, bias)
    return x, seen


@triton.jit
def _one_by_one(
    p, seen, v, table, start, begin, end, svp, svs, l, o,  # noqa: E741
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Keys begin ... end - 1 of a step into l [M, 16] and o [M, DV] of the rows that see them."""
    columns = tl.arange(0, BLOCK_DV)
    for key in range(begin, end):
        column = (start + tl.arange(0, _STEP) == key)[None, :]
        here = tl.max((seen & column).to(tl.int32), axis=1)[:, None] > 0
        weight = tl.sum(tl.where(column, p, 0.0), axis=1)[:, None]  # of one number
        one = tl.zeros((1,), tl.int32) + key
        place = _places(one, table, svp, svs, one >= 0, PAGE)
        value = tl.load(v + place[:, None] + columns[None, :], (columns < DV)[None, :], 0.0)
        value = tl.broadcast_to(value.to(tl.float32), o.shape)
        o = tl.where(here, tl.fma(tl.broadcast_to(weight, o.shape), value, o), o)
        l = tl.where(here, l + weight, l)  # noqa: E741
    return l, o


@triton.jit
def _fold(m, l, o, leaf_m, leaf_l, leaf_o):  # noqa: E741
    """The next leaf folded into m, l [M] and o [M, D]: the side with the smaller maximum is scaled
    inside the fma."""
    up = m <= leaf_m
    top = tl.where(up, leaf_m, m)
    factor = power(tl.where(up, m, leaf_m) - top)
    l = tl.fma(tl.where(up, l, leaf_l), factor, tl.where(up, leaf_l, l))  # noqa: E741
    wide = up[:, None]
    factors = tl.broadcast_to(factor[:, None], o.shape)
    o = tl.fma(tl.where(wide, o, leaf_o), factors, tl.where(wide, leaf_o, o))
    return top, l, o


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS)
def portable_kernel(
    q, k, v, out, lse, cu_q, cu_k, kv_lens, table, starts, mask, edges, sinks, a, cap, masked_at,
    q_start, q_len, kv_len, batch, kv_heads, tiles, leaves, window, leaf_keys, table_stride,
    sqb, sqh, sqt, skb, skh, sks, svb, svh, svs, sob, soh, sot, slb, slh, slt, smb, smh, smt, sms,
    seb, seh, set_,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr,
    GROUP: tl.constexpr, KEYS: tl.constexpr, PAGE: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    LSE: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Grid: tiles * batch * kv_heads, the longest tiles first. Strides as in `attention_kernel`.

    Args:
        edges: with a mask, [B, Hq, T, leaves + 1]: where each row's leaves begin, and the last one
            ends.
    """
    pid = tl.program_id(0)
    lane = pid % (batch * kv_heads)
    number = tiles - 1 - pid // (batch * kv_heads)
    kv_head = lane % kv_heads
    b = lane // kv_heads
    q_first, q_len, k_first, kv_len, q_start = sequence(
        b, cu_q, cu_k, kv_lens, starts, q_len, kv_len, q_start, KEYS
    )
    rows = q_len * GROUP
    if number * BLOCK_M >= rows:
        return
    row = number * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = row < rows
    t = row // GROUP
    head = (kv_head * GROUP + row % GROUP).to(tl.int64)
    position = q_start + t
    first = tl.zeros((BLOCK_M,), tl.int32)
    stop = first + kv_len
    if CAUSAL:
        stop = tl.minimum(stop, position + 1)
    if WINDOW:
        first = tl.maximum(first, position - window + 1)
        stop = tl.minimum(stop, position + window)

    own = tl.where(KEYS == "dense", b, 0).to(tl.int64)  # packed tensors have no batch axis
    q_row = (q_first + t).to(tl.int64)
    q_rows = own * sqb + head * sqh + q_row * sqt
    k += own * skb + kv_head.to(tl.int64) * skh + k_first.to(tl.int64) * sks
    v += own * svb + kv_head.to(tl.int64) * svh + k_first.to(tl.int64) * svs
    mask_rows = None
    if MASK != 0:
        mask_rows = mask + own * smb + head * smh + t.to(tl.int64) * smt
        edge_rows = edges + own * seb + head * seh + t.to(tl.int64) * set_
    else:
        longest = tl.max(tl.where(valid, stop - first, 0), axis=0)
        leaves = tl.cdiv(longest, leaf_keys)
    if PAGE != 0:
        table += b.to(tl.int64) * table_stride

    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)  # noqa: E741
    o = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    empty = valid
    columns = tl.arange(0, BLOCK_DV)
    for leaf in range(leaves):
        if MASK != 0:
            low = tl.maximum(tl.load(edge_rows + leaf, valid, 0), first)
            high = tl.minimum(tl.load(edge_rows + leaf + 1, valid, 0), stop)
        else:
            low = first + leaf * leaf_keys
            high = tl.minimum(low + leaf_keys, stop)
        there = valid & (low < high)
        low = tl.where(there, low, 0x7FFFFFFF)
        high = tl.where(there, high, 0)
        begin, end = tl.min(low, axis=0), tl.max(high, axis=0)
        if begin < end:
            top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
            for start in range(begin, end, _STEP):
                x, seen = _seen_scores(
                    q, q_rows, k, table, mask_rows, start, low, high, valid, skb, sks, sms, a, cap,
                    masked_at, D, MASK, SOFTCAP, PAGE,
                )  # fmt: skip
                top = tl.maximum(top, tl.max(tl.where(seen, x, float("-inf")), axis=1))
            leaf_m = tl.ceil(top)
            leaf_l = tl.zeros((BLOCK_M, 16), tl.float32)
            leaf_o = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
            for start in range(begin, end, _STEP):
                x, seen = _seen_scores(
                    q, q_rows, k, table, mask_rows, start, low, high, valid, skb, sks, sms, a, cap,
                    masked_at, D, MASK, SOFTCAP, PAGE,
                )  # fmt: skip
                p = flushed_exp2(x - leaf_m[:, None])
                hidden = tl.where(there[:, None] & ~seen, 1, 0)
                if tl.max(tl.max(hidden, axis=1), axis=0) == 0:
                    keys = start + tl.arange(0, _STEP)
                    places = _places(keys, table, svb, svs, keys >= 0, PAGE)
                    tile = tl.load(
                        v + places[:, None] + columns[None, :], (columns < DV)[None, :], 0.0
                    ).to(tl.float32)
                    p = tl.where(there[:, None], p, 0.0)
                    leaf_o = tl.dot(p, tile, leaf_o, input_precision="ieee")
                    ones = tl.full((_STEP, 16), 1.0, tl.float32)
                    leaf_l = tl.dot(p, ones, leaf_l, input_precision="ieee")
                else:
                    leaf_l, leaf_o = _one_by_one(
                        p, seen, v, table, start, start, tl.minimum(start + _STEP, end), svb, svs,
                        leaf_l, leaf_o, DV, BLOCK_DV, PAGE,
                    )  # fmt: skip
            sums = tl.max(leaf_l, axis=1)  # of equal columns
            if leaf > 0:
                leaf_m, sums, leaf_o = _fold(m, l, o, leaf_m, sums, leaf_o)
            m = tl.where(there, leaf_m, m)
            l = tl.where(there, sums, l)  # noqa: E741
            o = tl.where(there[:, None], leaf_o, o)
            empty = empty & ~there

    scale = tl.full((BLOCK_M,), 1.0, tl.float32)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        x = sink * _LOG2E
        sink_m = tl.ceil(x)
        up = m <= sink_m
        top = tl.where(up, sink_m, m)
        factor = power(tl.where(up, m, sink_m) - top)
        weight = flushed_exp2(x - sink_m)
        none = sink == float("-inf")
        scale = tl.where(none | ~up, 1.0, factor)
        with_sink = tl.fma(tl.where(up, l, weight), factor, tl.where(up, weight, l))
        l = tl.where(none, l, with_sink)  # noqa: E741
        m = tl.where(none, m, top)
    total = tl.where((l == 0.0) & empty, 1.0, l)
    totals = tl.broadcast_to(total[:, None], o.shape)
    y = tl.div_rn(o * scale[:, None], totals).to(out.dtype.element_ty)
    at = own * sob + head * soh + q_row * sot
    tl.store(out + at[:, None] + columns[None, :], y, valid[:, None] & (columns < DV)[None, :])
    if LSE:
        sums = tl.fma(m, tl.full(m.shape, _LN2, tl.float32), log(l))
        sums = tl.where(sums == sums, sums, chips_nan(m))
        tl.store(lse + own * slb + head * slh + q_row * slt, sums, valid)


def leaf_edges(
    mask: torch.Tensor, masked_at: float, positions: torch.Tensor, call: Any
) -> torch.Tensor:
    """Where the leaves of each row begin, counting the keys that it sees: [B, Hq, T, leaves + 1].

    Args:
        mask: [B, Hq, T, S], expanded; axes of stride 0 stay so.
        positions: [B or 1, T], of the rows.
        call: as for `run`.
    """
    thin = mask
    for axis in range(3):
        if thin.stride(axis) == 0 and thin.size(axis) > 1:
            thin = thin.narrow(axis, 0, 1)
    seen = thin if thin.dtype is torch.bool else ~(thin <= masked_at)
    keys = torch.arange(mask.size(3), device=mask.device)
    rows = positions[:, None, :, None]
    if call.options.causal:
        seen = seen & (keys <= rows)
    if call.options.window is not None:
        seen = seen & (keys > rows - call.options.window) & (keys < rows + call.options.window)
    counts = seen.to(torch.int32).cumsum(-1, dtype=torch.int32)
    leaves = -(-mask.size(3) // call.contract.leaf)
    wanted = torch.arange(leaves + 1, device=mask.device, dtype=torch.int32) * call.contract.leaf
    wanted = (wanted + 1).expand(*counts.shape[:-1], leaves + 1).contiguous()
    edges = torch.searchsorted(counts, wanted, out_int32=True)
    return edges.expand(*mask.shape[:3], leaves + 1)


def run(call: Any, mask: torch.Tensor | None, masked_at: float) -> None:
    """Computes a call, in the form in which `run` has it, by the portable contract."""
    options, leaf = call.options, call.contract.leaf
    group = call.out.size(1) // call.kv_heads
    rows = call.q_len * group
    block_m = max(16, min(_BLOCK_M, 1 << (rows - 1).bit_length()))
    tiles = -(-rows // block_m)
    d, dv = call.q.size(-1), call.out.size(-1)
    edges = None
    if mask is not None:
        steps = torch.arange(call.q_len, device=mask.device)
        first = call.q_start if call.starts is None else call.starts[:, None]
        edges = leaf_edges(mask, masked_at, (steps + first).view(-1, call.q_len), call)
    cap, scale = options.softcap, options.scale
    a, b = (scale * math.log2(math.e), 0.0) if cap is None else (
        scale / cap, cap * math.log2(math.e)
    )  # fmt: skip
    launch(
        portable_kernel, (tiles * call.batch * call.kv_heads,), call.q, call.k, call.v, call.out,
        call.lse, *call.lengths, call.table, call.starts, mask, edges, options.sinks, a, b,
        masked_at, call.q_start, call.q_len, call.kv_len, call.batch, call.kv_heads, tiles,
        -(-call.kv_len // leaf), options.window or 0, leaf,
        0 if call.table is None else call.table.stride(0),
        *call.strides[0], *call.strides[1], *call.strides[2], *call.strides[3], *call.lse_strides,
        *((0, 0, 0, 0) if mask is None else mask.stride()),
        *((0, 0, 0) if edges is None else edges.stride()[:3]),
        D=d, DV=dv, BLOCK_DV=max(16, 1 << (dv - 1).bit_length()), GROUP=group, KEYS=call.keys,
        PAGE=0 if call.table is None else call.k.size(1), CAUSAL=options.causal,
        WINDOW=options.window is not None,
        MASK=0 if mask is None else 1 if mask.dtype is torch.bool else 2,
        SOFTCAP=cap is not None, SINKS=options.sinks is not None, LSE=call.lse is not None,
        BLOCK_M=block_m, num_warps=8 if max(d, dv) > 64 else 4, num_stages=1,
    )  # fmt: skip
