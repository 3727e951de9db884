"""Decode with few leaves: every leaf is spread over processors, so that none waits for one.

Where a leaf has a processor of its own, the time of decoding is that of loading and multiplying one
leaf, step after step. But only the chain over its keys is serial. So scores are computed by
programs of 64 keys (`scores_kernel`), values by programs of some columns of a leaf
(`values_kernel`), and leaves are folded as always: the operations of `forward`, in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.engines.triton.attention.fold import store_leaf
from samebits.engines.triton.attention.forward import exponents, weights_of
from samebits.engines.triton.attention.keys import (
    COUNTS,
    LISTS,
    key_range,
    pages_of,
    seen_keys,
    sequence,
    tile,
    widened,
)
from samebits.engines.triton.attention.softmax import STEP, larger, power


@triton.jit
def _place(
    cu_q, cu_k, kv_lens, starts, q_start, kv_len, kv_heads, window,
    GROUP: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Where a program stands: axis 0 of the grid is a KV head of a sequence."""
    b = tl.program_id(0) // kv_heads
    kv_head = tl.program_id(0) % kv_heads
    q_first, q_len, k_first, kv_len, q_start = sequence(
        b, cu_q, cu_k, kv_lens, starts, 1, kv_len, q_start, KEYS
    )
    lo, hi = key_range(q_start, q_start, kv_len, window, CAUSAL, WINDOW)
    hi = tl.where(q_len > 0, hi, lo)
    row = tl.arange(0, BLOCK_M)
    valid = row < GROUP
    position = tl.where(valid, q_start, -1)
    head = (kv_head * GROUP + row).to(tl.int64)
    own = tl.where(KEYS == "dense", b, 0).to(tl.int64)
    flat = (own + q_first) * (kv_heads * GROUP) + head
    return b, kv_head.to(tl.int64), own, q_first, k_first, lo, hi, valid, position, head, flat


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS)
def scores_kernel(
    q, k, scores, tops, cu_q, cu_k, kv_lens, table, starts, k_scale, a, cap, q_start, kv_len,
    kv_heads, leaves, window, leaf_keys, table_stride, sqb, sqh, sqt, skb, skh, sks,
    D: tl.constexpr, BLOCK_D: tl.constexpr, GROUP: tl.constexpr, KEYS: tl.constexpr,
    PAGE: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    K_SCALE: tl.constexpr, BLOCK_M: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Scores of 64 keys, or their exponents with softcap, and the largest exponent of each row.

    Grid: (batch * kv_heads, steps). scores: [rows, leaves * leaf], tops: [rows, steps].
    """
    if PDL:
        gdc_launch_dependents()
    b, kv_head, own, q_first, k_first, lo, hi, valid, position, head, flat = _place(
        cu_q, cu_k, kv_lens, starts, q_start, kv_len, kv_heads, window, GROUP, KEYS, CAUSAL, WINDOW,
        BLOCK_M,
    )  # fmt: skip
    start = tl.program_id(1) * STEP
    if (start >= hi) | (start + STEP <= lo):
        return
    if K_SCALE:
        a = a * tl.load(k_scale + kv_head)
    if PAGE != 0:
        table += b.to(tl.int64) * table_stride
    k += own * skb + kv_head * skh + tl.cast(k_first, tl.int64) * sks
    keys = tile(
        k, start, pages_of(table, start, hi, PAGE), skb, sks, lo, hi, BLOCK_D, D, PAGE, True
    )
    d = tl.arange(0, BLOCK_D)
    rows = q + (own * sqb + head * sqh + tl.cast(q_first, tl.int64) * sqt)[:, None]
    q_tile = tl.load(rows + d[None, :], mask=valid[:, None] & (d < D)[None, :], other=0.0)
    s = tl.dot(q_tile, tl.trans(widened(keys, q_tile.dtype)))
    at = start + tl.arange(0, STEP)
    s, _, _, top = exponents(
        s, None, at, hi, window, position, 0, a, cap, 0.0, CAUSAL, WINDOW, 0, SOFTCAP, True
    )
    row = flat * leaves * leaf_keys
    tl.store(scores + row[:, None] + at[None, :], s, mask=valid[:, None])
    tl.store(tops + (row + start) // STEP, top, mask=valid)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS)
def values_kernel(
    q, v, scores, tops, partial, stats, seals, cu_q, cu_k, kv_lens, table, starts, k_scale, a,
    q_start, kv_len, kv_heads, leaves, window, table_stride, svb, svh, svs,
    DV: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, KEYS: tl.constexpr,
    PAGE: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    K_SCALE: tl.constexpr, LEAF: tl.constexpr, BLOCK_M: tl.constexpr, SLICE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A leaf's o in some columns, its m and l. Grid: (batch * kv_heads, leaves, column blocks).

    Values are asked for before the scores are there.
    """
    if PDL:
        gdc_launch_dependents()
    b, kv_head, own, _, k_first, lo, hi, valid, position, _, flat = _place(
        cu_q, cu_k, kv_lens, starts, q_start, kv_len, kv_heads, window, GROUP, KEYS, CAUSAL, WINDOW,
        BLOCK_M,
    )  # fmt: skip
    leaf = tl.program_id(1)
    if (leaf * LEAF >= hi) | (leaf * LEAF + LEAF <= lo):
        return
    if K_SCALE:
        a = a * tl.load(k_scale + kv_head)
    if PAGE != 0:
        table += b.to(tl.int64) * table_stride
    kind: tl.constexpr = q.dtype.element_ty
    first = tl.program_id(2) * COLUMNS
    v += own * svb + kv_head * svh + tl.cast(k_first, tl.int64) * svs + first
    row = flat * leaves * LEAF
    values = ()
    for i in tl.static_range(LEAF // STEP.value):
        start = leaf * LEAF + i * STEP
        pages = pages_of(table, start, hi, PAGE)
        loaded = tile(v, start, pages, svb, svs, lo, hi, COLUMNS, DV - first, PAGE, True)
        values = values + (loaded,)  # noqa: RUF005
    if PDL:
        gdc_wait()
    steps = ()
    for i in tl.static_range(LEAF // STEP.value):
        start = leaf * LEAF + i * STEP
        there = (start < hi) & (start + STEP > lo)
        top = tl.load(tops + (row + start) // STEP, mask=valid & there, other=float("-inf"))
        at = start + tl.arange(0, STEP)
        s = tl.load(scores + row[:, None] + at[None, :], mask=valid[:, None] & there, other=0.0)
        steps = steps + ((s, top),)  # noqa: RUF005
    ones = tl.full((STEP, 16), 1.0, tl.float32).to(kind)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M, 16), tl.float32)  # noqa: E741
    acc = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
    for i in tl.static_range(LEAF // STEP.value):
        s, top = steps[i]
        keys = leaf * LEAF + i * STEP + tl.arange(0, STEP)
        new_m = larger(m, tl.ceil(top))
        seen = seen_keys(position, keys, hi, window, CAUSAL, WINDOW)
        p = weights_of(s, 0.0, seen, new_m, a, SOFTCAP, False, True).to(kind)
        factor = power(m - new_m)[:, None]
        l = tl.dot(p, ones, l * factor)  # noqa: E741
        acc = tl.dot(p, widened(values[i], kind), acc * factor)
        m = new_m
    leaf_l = tl.max(l, axis=1)
    store_leaf(
        partial, stats, seals, leaf, leaves, flat, valid, tl.maximum(lo, leaf * LEAF),
        tl.minimum(hi, leaf * LEAF + LEAF), m, leaf_l, acc, first, DV, SLICE, seals is not None,
    )  # fmt: skip
