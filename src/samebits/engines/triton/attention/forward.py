"""The forward kernel: attention over dense, packed or paged keys.

A program owns BLOCK_M rows of one KV head: the query heads that share it, position by position
(row = position * GROUP + head), so that decode and verification fill a tile with the few rows that
there are. It walks the keys that its rows see in steps of 64. At the end of a leaf it folds the
leaf into its running result (SPLIT false), or writes it out for `fold.fold_kernel` (SPLIT true):
the same operations in the same order.

Online softmax: Milakov and Gimelshein, 2018; tiling: Dao et al., FlashAttention, 2022; leaves over
programs: Dao et al., Flash-Decoding, 2023.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from samebits.engines.triton import path
from samebits.engines.triton.attention.fold import store_leaf, store_result
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
from samebits.engines.triton.attention.softmax import (
    STEP,
    capped,
    fold,
    power,
    raised,
    row_maximum,
    with_bias,
)
from samebits.engines.triton.functions import opaque


@triton.jit
def _value_dot(p, v, acc, seen, CHECKED: tl.constexpr):
    """acc + p v, chained. CHECKED: Inf and NaN of keys that a row does not see do not touch it.

    Then a tile with one takes a slow way: its finite values go through the chain, and what IEEE
    gives for the others (0 * Inf, Inf - Inf, ...) is counted in exact products of zeros and ones.
    """
    if CHECKED:
        wide = v.to(tl.float32)
        odd = ~(tl.abs(wide) < float("inf"))
        if tl.max(tl.max(odd.to(tl.int32), axis=1), axis=0) > 0:
            acc = tl.dot(p, tl.where(odd, 0.0, wide).to(v.dtype), acc)
            zero = tl.zeros(acc.shape, tl.float32)
            weight = p.to(tl.float32)
            some = (seen & (weight > 0.0)).to(v.dtype)
            none = (seen & (weight == 0.0)).to(v.dtype)
            up = tl.dot(some, (wide == float("inf")).to(v.dtype), zero)
            acc += tl.where(up > 0.0, float("inf"), 0.0)
            down = tl.dot(some, (wide == float("-inf")).to(v.dtype), zero)
            acc += tl.where(down > 0.0, float("-inf"), 0.0)
            lost = tl.dot(none, odd.to(v.dtype), tl.dot(some, (wide != wide).to(v.dtype), zero))
            acc += tl.where(lost > 0.0, float("nan"), 0.0)
        else:
            acc = tl.dot(p, v, acc)
    else:
        acc = tl.dot(p, v, acc)
    return acc


@triton.jit
def _load(
    k, v, table, pages, start, lo, hi, skp, sks, svp, svs,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PAGE: tl.constexpr, SPAN: tl.constexpr, PARTLY: tl.constexpr,
):  # fmt: skip
    """SPAN steps of K and V from `start` on, whose `pages` are known, and the pages after them."""
    tiles, after = (), ()
    for i in tl.static_range(SPAN):
        at = start + i * STEP
        k_tile = tile(k, at, pages[i], skp, sks, lo, hi, BLOCK_D, D, PAGE, PARTLY)
        v_tile = tile(v, at, pages[i], svp, svs, lo, hi, BLOCK_DV, DV, PAGE, PARTLY)
        tiles = tiles + ((k_tile, v_tile),)  # noqa: RUF005
        after = after + (pages_of(table, at + SPAN * STEP, hi, PAGE),)  # noqa: RUF005
    return tiles, after


@triton.jit
def exponents(
    s, mask_rows, keys, hi, window, position, sms, a, cap, masked_at,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr,
    PARTLY: tl.constexpr,
):  # fmt: skip
    """Scores [M, STEP] as they are, or, where they are capped, the exponents; what an additive mask
    adds to scores; which of them are seen; and the largest exponent that each row [M] sees."""
    seen = position[:, None] >= 0
    bias = 0.0
    if PARTLY:
        seen = seen_keys(position, keys, hi, window, CAUSAL, WINDOW)
    if MASK == 1:
        allowed = tl.load(mask_rows[:, None] + keys[None, :] * sms, mask=seen, other=0)
        seen = seen & (opaque(allowed.to(tl.int32)) != 0)
    elif MASK == 2:
        bias = tl.load(mask_rows[:, None] + keys[None, :] * sms, mask=seen, other=0.0)
        bias = bias.to(tl.float32)
        seen = seen & ~(bias <= masked_at)
    if SOFTCAP:
        s = capped(s * a, cap)
        if MASK == 2:
            s = with_bias(s, bias)
        top = row_maximum(tl.where(seen, s, float("-inf")))
    elif MASK == 2:
        top = row_maximum(tl.where(seen, with_bias(s * a, bias), float("-inf")))
    elif MASK == 1:
        top = row_maximum(tl.where(seen, s * a, float("-inf")))
    else:
        top = row_maximum(tl.where(seen, s, float("-inf")) if PARTLY else s) * a
    return s, bias, seen, top


@triton.jit
def weights_of(
    s, bias, seen, m, a, ROUNDED: tl.constexpr, BIASED: tl.constexpr, PARTLY: tl.constexpr
):
    """2^(x - m) of exponents (x = s) if ROUNDED, else of scores (x = s * a, with a bias if BIASED);
    +0 if not seen."""
    low = tl.broadcast_to(tl.where(m == float("-inf"), 0.0, m)[:, None], s.shape)
    if ROUNDED:
        p = tl.exp2(s - low)
    else:
        # A bias of 0 leaves the bits of no mask: it joins the maximum, not the score.
        added = with_bias(-low, bias) if BIASED else -low
        p = tl.exp2(tl.fma(s, tl.zeros(s.shape, tl.float32) + a, added))
    if PARTLY:
        p = tl.where(seen, p, 0.0)
    return p


@triton.jit
def _advance(
    m, l, acc, q, tiles, mask_rows, start, hi, window, position, sms, a, cap,  # noqa: E741
    masked_at,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr,
    SPAN: tl.constexpr, PARTLY: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """SPAN steps into a leaf's m [M], l [M, 16] (equal columns) and o [M, DV].

    Their scores and weights do not wait for one another; steps from `hi` on change nothing.
    PARTLY: some rows may not see some keys. CHECKED: see `_value_dot`.
    """
    scores, weights = (), ()
    for i in tl.static_range(SPAN):
        scores = scores + (tl.dot(q, tl.trans(widened(tiles[i][0], q.dtype))),)  # noqa: RUF005
    for i in tl.static_range(SPAN):
        keys = start + i * STEP + tl.arange(0, STEP)
        s, bias, seen, top = exponents(
            scores[i], mask_rows, keys, hi, window, position, sms, a, cap, masked_at, CAUSAL,
            WINDOW, MASK, SOFTCAP, PARTLY,
        )  # fmt: skip
        new_m = raised(m, top)
        p = weights_of(s, bias, seen, new_m, a, SOFTCAP, MASK == 2, PARTLY or MASK != 0)
        weights = weights + ((p.to(q.dtype), seen, power(m - new_m)[:, None]),)  # noqa: RUF005
        m = new_m
    ones = tl.full((STEP, 16), 1.0, tl.float32).to(q.dtype)
    for i in tl.static_range(SPAN):
        p, seen, factor = weights[i]  # type: ignore[var-annotated]
        l = tl.dot(p, ones, l * factor)  # noqa: E741
        acc = _value_dot(p, widened(tiles[i][1], q.dtype), acc * factor, seen, CHECKED)
    return m, l, acc


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS)
def attention_kernel(
    q, k, v, out, lse, partial, stats, seals, ticket, cu_q, cu_k, kv_lens, table, starts, mask,
    sinks, k_scale, v_scale, a, cap, masked_at, q_start, q_len, kv_len, batch, kv_heads, tiles,
    splits, leaves, window, leaf_keys, table_stride,
    sqb, sqh, sqt, skb, skh, sks, svb, svh, svs, sob, soh, sot, slb, slh, slt, smb, smh, smt, sms,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    GROUP: tl.constexpr, KEYS: tl.constexpr, PAGE: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    LSE: tl.constexpr, K_SCALE: tl.constexpr, V_SCALE: tl.constexpr, BLOCK_M: tl.constexpr,
    ONE_POSITION: tl.constexpr, SPAN: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr,
    SLICE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: tiles * splits * batch * kv_heads, the longest tiles first.

    q, k, v, out are addressed by their strides in elements (batch or page, head, row); columns are
    contiguous.
    """
    if PDL:
        gdc_launch_dependents()  # `fold_kernel` takes its place early and waits for this grid's end
    pid = tl.program_id(0)
    lane = pid % (batch * kv_heads)
    pid //= batch * kv_heads
    kv_head = lane % kv_heads
    b = lane // kv_heads
    split = pid % splits
    number = tiles - 1 - pid // splits
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
    position = tl.where(valid, q_start + t, -1)
    first = q_start + number * BLOCK_M // GROUP
    last = q_start + (tl.minimum(number * BLOCK_M + BLOCK_M, rows) - 1) // GROUP
    lo, hi = key_range(first, last, kv_len, window, CAUSAL, WINDOW)
    CHECK: tl.constexpr = ticket is not None
    seen_lo, seen_hi = lo, hi
    row_lo, row_hi = key_range(position, position, kv_len, window, CAUSAL, WINDOW)
    digest = tl.full((), 0, tl.uint32)
    if CHECK:
        seed = path.expected_of(ticket)
        length = path.length_of(ticket)
        digest = seed
    leaf = lo // leaf_keys
    leaf_stop = tl.cdiv(hi, leaf_keys)
    if SPLIT:
        run = tl.cdiv(leaf_stop - leaf, splits)
        leaf += split * run
        leaf_stop = tl.minimum(leaf_stop, leaf + run)
        if leaf >= leaf_stop:
            return
        hi = tl.minimum(hi, leaf_stop * leaf_keys)
    begin = tl.maximum(lo // (SPAN * STEP) * (SPAN * STEP), leaf * leaf_keys)
    end = tl.cdiv(hi, STEP) * STEP

    own = tl.where(KEYS == "dense", b, 0).to(tl.int64)  # packed tensors have no batch axis
    q_row = (q_first + t).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    q_rows = own * sqb + head * sqh + q_row * sqt
    q_tile = tl.load(
        q + q_rows[:, None] + d[None, :], mask=valid[:, None] & (d < D)[None, :], other=0.0
    )
    k += own * skb + kv_head.to(tl.int64) * skh + k_first.to(tl.int64) * sks
    v += own * svb + kv_head.to(tl.int64) * svh + k_first.to(tl.int64) * svs
    if K_SCALE:
        a = a * tl.load(k_scale + kv_head)
    mask_rows = None
    if MASK != 0:
        mask_rows = mask + own * smb + head * smh + t.to(tl.int64) * smt
    if PAGE != 0:
        table += b.to(tl.int64) * table_stride
    flat = (own * q_len + q_row) * (kv_heads * GROUP) + head

    run_m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    run_l = tl.zeros((BLOCK_M,), tl.float32)
    run_o = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    no_l = tl.zeros((BLOCK_M, 16), tl.float32)
    if ONE_POSITION and MASK == 0 and BLOCK_M < 64:
        # Decode: one loop over all leaves, so that loads stay in flight across their edges. The
        # loads' masks hide keys that are not seen. (Tiles of 64 rows have products in flight, which
        # the compiler would not wait for in a branch.)
        m, l, acc = run_m, no_l, run_o  # noqa: E741
        pages = ()
        for i in tl.static_range(SPAN):
            pages = pages + (pages_of(table, begin + i * STEP, hi, PAGE),)  # noqa: RUF005
        for start in tl.range(begin, end, SPAN * STEP, num_stages=STAGES):
            loaded, pages = _load(
                k, v, table, pages, start, lo, hi, skb, sks, svb, svs, D, DV, BLOCK_D, BLOCK_DV,
                PAGE, SPAN, True,
            )  # fmt: skip
            m, l, acc = _advance(  # noqa: E741
                m, l, acc, q_tile, loaded, mask_rows, start, hi, window, position, sms, a, cap,
                masked_at, CAUSAL, WINDOW, MASK, SOFTCAP, SPAN, True, False,
            )  # fmt: skip
            after = start + SPAN * STEP
            if (after % leaf_keys == 0) | (after >= end):
                leaf_l = tl.max(l, axis=1)
                if SPLIT:
                    at = start // leaf_keys
                    store_leaf(
                        partial, stats, seals, at, leaves, flat, valid,
                        tl.maximum(row_lo, at * leaf_keys),
                        tl.minimum(row_hi, at * leaf_keys + leaf_keys), m, leaf_l, acc, 0, DV,
                        SLICE, CHECK,
                    )  # fmt: skip
                else:
                    run_m, run_l, run_o = fold(run_m, run_l, run_o, m, leaf_l, acc)
                    if CHECK:
                        edge = start // leaf_keys * leaf_keys
                        digest = path.fold_word(
                            digest, path.leaf_word(tl.maximum(lo, edge), tl.minimum(hi, after))
                        )
                m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
                l = tl.zeros((BLOCK_M, 16), tl.float32)  # noqa: E741
                acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    else:
        # From `inner` to `outer` every row sees every key, and steps need no masks. The branch of
        # checked steps does not go together with loads or products in flight.
        UNMASKED: tl.constexpr = MASK == 0
        CHECKED: tl.constexpr = MASK != 0 or CAUSAL or WINDOW
        inner = begin
        outer = begin
        if UNMASKED:
            if WINDOW:
                inner = tl.cdiv(tl.maximum(last - window + 1, 0), STEP) * STEP
                inner = tl.minimum(tl.maximum(inner, begin), end)
            outer = tl.minimum(hi, kv_len)
            if CAUSAL:
                outer = tl.minimum(outer, first + 1)
            if WINDOW:
                outer = tl.minimum(outer, first + window)
            outer = tl.maximum(outer // STEP * STEP, inner)
        for at in tl.range(leaf, leaf_stop, num_stages=1):
            m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
            l = no_l  # noqa: E741
            acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
            for part in tl.static_range(3):
                if (part == 0 and UNMASKED and WINDOW) or (part == 1 and UNMASKED) or part == 2:
                    from_key = begin if part == 0 else (inner if part == 1 else outer)
                    to_key = inner if part == 0 else (outer if part == 1 else end)
                    from_key = tl.maximum(from_key, at * leaf_keys)
                    to_key = tl.minimum(to_key, at * leaf_keys + leaf_keys)
                    pages = (pages_of(table, from_key, hi, PAGE),)
                    for start in tl.range(
                        from_key, to_key, STEP, num_stages=1 if part != 1 and CHECKED else STAGES
                    ):
                        loaded, pages = _load(
                            k, v, table, pages, start, lo, hi, skb, sks, svb, svs, D, DV, BLOCK_D,
                            BLOCK_DV, PAGE, 1, part != 1,
                        )  # fmt: skip
                        m, l, acc = _advance(  # noqa: E741
                            m, l, acc, q_tile, loaded, mask_rows, start, hi, window, position, sms,
                            a, cap, masked_at, CAUSAL, WINDOW, MASK, SOFTCAP, 1, part != 1,
                            part != 1 and CHECKED,
                        )  # fmt: skip
            leaf_l = tl.max(l, axis=1)
            if SPLIT:
                store_leaf(
                    partial, stats, seals, at, leaves, flat, valid,
                    tl.maximum(row_lo, at * leaf_keys),
                    tl.minimum(row_hi, at * leaf_keys + leaf_keys), m, leaf_l, acc, 0, DV, SLICE,
                    CHECK,
                )  # fmt: skip
            else:
                run_m, run_l, run_o = fold(run_m, run_l, run_o, m, leaf_l, acc)
                if CHECK:
                    digest = path.fold_word(
                        digest,
                        path.leaf_word(
                            tl.maximum(lo, at * leaf_keys),
                            tl.minimum(hi, at * leaf_keys + leaf_keys),
                        ),
                    )
    if not SPLIT:
        if CHECK:
            path.judge(ticket, digest == path.ascending(seed, seen_lo, seen_hi, length))
        store_result(
            out, lse, sinks, v_scale, head, kv_head, own * sob + head * soh + q_row * sot,
            own * slb + head * slh + q_row * slt, valid, run_m, run_l, run_o, dv, DV, SINKS, LSE,
            V_SCALE,
        )  # fmt: skip
