"""The forward kernels: attention over dense, packed or paged keys, and the fold of its leaves.

A program owns BLOCK_M rows of one KV head: the query heads that share it, position by position
(row = position * GROUP + head), so that decode and verification fill a tile with the few rows that
there are. It walks the keys that its rows see in steps of 64. At the end of a leaf it folds the
leaf into its running result (SPLIT false), or writes it out for `fold_kernel` (SPLIT true): the
same operations in the same order.

Online softmax: Milakov and Gimelshein, 2018; tiling: Dao et al., FlashAttention, 2022; leaves over
CTAs: Dao et al., Flash-Decoding, 2023; pages: Kwon et al., PagedAttention, 2023.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.engines.triton.attention.softmax import (
    STEP,
    capped,
    fold,
    fold_sink,
    logsumexp,
    power,
    raised,
    result,
    row_maximum,
    short_exp2,
    with_bias,
)

#: Parameters whose values (1, multiples of 16) need no kernels of their own.
_COUNTS = [
    "q_start", "q_len", "kv_len", "batch", "kv_heads", "q_heads", "tiles", "splits", "total",
    "longest", "window", "leaf_keys", "table_stride", "slb", "slh", "slt",
]  # fmt: skip


@triton.jit
def _sequence(b, cu_q, cu_k, kv_lens, starts, q_len, kv_len, q_start, KEYS: tl.constexpr):
    """First row in q, rows, first row in k, keys, and position of the first row of sequence b."""
    q_first = 0
    k_first = 0
    if KEYS != "dense":
        q_first = tl.load(cu_q + b).to(tl.int32)
        q_len = tl.load(cu_q + b + 1).to(tl.int32) - q_first
    if KEYS == "varlen":
        k_first = tl.load(cu_k + b).to(tl.int32)
        kv_len = tl.load(cu_k + b + 1).to(tl.int32) - k_first
    if KEYS == "paged":
        kv_len = tl.load(kv_lens + b).to(tl.int32)
    if starts is not None:
        q_start = tl.load(starts + b).to(tl.int32)
    elif KEYS != "dense":
        q_start = kv_len - q_len
    return q_first, q_len, k_first, kv_len, q_start


@triton.jit
def _range(first, last, kv_len, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """The keys [lo, hi) that some of the positions first ... last may see."""
    lo = 0
    hi = kv_len
    if CAUSAL:
        hi = tl.minimum(hi, last + 1)
    if WINDOW:
        lo = tl.maximum(lo, first - window + 1)
        hi = tl.minimum(hi, last + window)
    return lo, tl.maximum(hi, lo)


@triton.jit
def _blocks(table, start, hi, PAGE: tl.constexpr):
    """The pages of a step's keys: one, or one for each key where a page is smaller than a step."""
    blocks = 0
    if PAGE != 0:
        at = start
        if PAGE % STEP.value != 0:
            at = start + tl.arange(0, STEP)
        blocks = tl.load(table + at // PAGE, mask=at < hi, other=0)
    return blocks


@triton.jit
def _rows(start, blocks, page_stride, row_stride, PAGE: tl.constexpr):
    """Offsets of a step's rows of K or V, [STEP] int64."""
    lanes = tl.arange(0, STEP)
    if PAGE == 0:
        rows = tl.cast(start, tl.int64) * row_stride + lanes * row_stride
    elif PAGE % STEP.value == 0:
        first = tl.cast(blocks, tl.int64) * page_stride
        rows = first + tl.cast(start % PAGE, tl.int64) * row_stride + lanes * row_stride
    else:
        rows = tl.cast(blocks, tl.int64) * page_stride + (start + lanes) % PAGE * row_stride
    return rows


@triton.jit
def _seen(position, keys, kv_len, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Which keys [N] the rows at `position` [M] see by their place alone."""
    seen = (keys < kv_len)[None, :] & (position >= 0)[:, None]
    if CAUSAL:
        seen = seen & (keys[None, :] <= position[:, None])
    if WINDOW:
        apart = position[:, None] - keys[None, :]
        seen = seen & (apart < window) & (apart > -window)
    return seen


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
def _store_leaf(partial, stats, leaf, total, flat, valid, m, l, acc, DV: tl.constexpr):  # noqa: E741
    """A leaf's o [M, DV], m and l [M] to the workspace: [leaves, total, DV] and [.., total, 2]."""
    at = tl.cast(leaf, tl.int64) * total + flat
    columns = tl.arange(0, acc.shape[1])
    tl.store(
        partial + at[:, None] * DV + columns[None, :], acc,
        mask=valid[:, None] & (columns < DV)[None, :],
    )  # fmt: skip
    tl.store(stats + 2 * at, m, mask=valid)
    tl.store(stats + 2 * at + 1, l, mask=valid)


@triton.jit
def _steps(
    m, l, acc, q, k_ptr, v_ptr, table, mask_rows, begin, end, lo, hi, kv_len, window,  # noqa: E741
    position, skp, sks, svp, svs, sms, a, cap, masked_at,
    D: tl.constexpr, DV: tl.constexpr, PAGE: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr, DEGREE: tl.constexpr,
    PARTLY: tl.constexpr, CHECKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The steps of the keys begin ... end of a leaf, into its m [M], l [M, 16] and o [M, DV].

    PARTLY: some rows may not see some keys; CHECKED: see `_value_dot`. The branch in there does not
    go together with loads or products in flight (the compiler would let them pass each other).
    """
    lanes = tl.arange(0, STEP)
    d = tl.arange(0, q.shape[1])
    dv = tl.arange(0, acc.shape[1])
    ones = tl.full((STEP, 16), 1.0, tl.float32).to(q.dtype)
    blocks = _blocks(table, begin, hi, PAGE)
    for start in tl.range(begin, end, STEP, num_stages=1 if CHECKED else STAGES):
        keys = start + lanes
        k_rows = k_ptr + _rows(start, blocks, skp, sks, PAGE)[:, None]
        v_rows = v_ptr + _rows(start, blocks, svp, svs, PAGE)[:, None]
        if PARTLY:
            there = ((keys >= lo) & (keys < hi))[:, None]
            k = tl.load(k_rows + d[None, :], mask=there & (d < D)[None, :], other=0.0)
            v = tl.load(v_rows + dv[None, :], mask=there & (dv < DV)[None, :], other=0.0)
        else:
            if q.shape[1] == D:
                k = tl.load(k_rows + d[None, :])
            else:
                k = tl.load(k_rows + d[None, :], mask=(d < D)[None, :], other=0.0)
            if acc.shape[1] == DV:
                v = tl.load(v_rows + dv[None, :])
            else:
                v = tl.load(v_rows + dv[None, :], mask=(dv < DV)[None, :], other=0.0)
        blocks = _blocks(table, start + STEP, hi, PAGE)

        s = tl.dot(q, tl.trans(k).to(q.dtype))
        seen = position[:, None] >= 0
        if PARTLY:
            seen = _seen(position, keys, kv_len, window, CAUSAL, WINDOW)
        if MASK != 0 or SOFTCAP:
            s = s * a
            if SOFTCAP:
                s = capped(s, cap)
            if MASK == 1:
                allowed = tl.load(mask_rows[:, None] + keys[None, :] * sms, mask=seen, other=0)
                seen = seen & (allowed != 0)
            elif MASK == 2:
                bias = tl.load(mask_rows[:, None] + keys[None, :] * sms, mask=seen, other=0.0)
                bias = bias.to(tl.float32)
                seen = seen & ~(bias <= masked_at)
                s = with_bias(s, bias)
            top = row_maximum(tl.where(seen, s, float("-inf")))
        else:
            top = row_maximum(tl.where(seen, s, float("-inf")) if PARTLY else s) * a
        new_m = raised(m, top)
        low = tl.broadcast_to(tl.where(new_m == float("-inf"), 0.0, new_m)[:, None], s.shape)
        if MASK != 0 or SOFTCAP:
            p = short_exp2(s - low, DEGREE)
        else:
            p = short_exp2(tl.fma(s, tl.zeros(s.shape, tl.float32) + a, -low), DEGREE)
        if PARTLY or MASK != 0:
            p = tl.where(seen, p, 0.0)
        p = p.to(q.dtype)
        factor = power(m - new_m)[:, None]
        l = tl.dot(p, ones, l * factor)  # noqa: E741
        acc = _value_dot(p, v.to(q.dtype), acc * factor, seen, CHECKED)
        m = new_m
    return m, l, acc


@triton.jit
def _store_result(
    out, lse, sinks, v_scale, head, kv_head, row, lse_row, valid, m, l, o,  # noqa: E741
    LSE: tl.constexpr, SINKS: tl.constexpr, V_SCALE: tl.constexpr, dv, DV: tl.constexpr,
):  # fmt: skip
    """Sink, division, last rounding, and the stores of a tile's rows."""
    if SINKS:
        m, l, o = fold_sink(m, l, o, tl.load(sinks + head, mask=valid, other=0.0))  # noqa: E741
    y = result(m, l, o)
    if V_SCALE:
        y = y * tl.load(v_scale + kv_head)
    tl.store(
        out + row[:, None] + dv[None, :], y.to(out.dtype.element_ty),
        mask=valid[:, None] & (dv < DV)[None, :],
    )  # fmt: skip
    if LSE:
        tl.store(lse + lse_row, logsumexp(m, l), mask=valid)


@triton.jit(do_not_specialize=_COUNTS)
def attention_kernel(
    q, k, v, out, lse, partial, stats, cu_q, cu_k, kv_lens, table, starts, mask, sinks, k_scale,
    v_scale, a, cap, masked_at, q_start, q_len, kv_len, batch, kv_heads, tiles, splits, total,
    window, leaf_keys, table_stride,
    sqb, sqh, sqt, skb, skh, sks, svb, svh, svs, sob, soh, sot, slb, slh, slt, smb, smh, smt, sms,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    GROUP: tl.constexpr, KEYS: tl.constexpr, PAGE: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    LSE: tl.constexpr, K_SCALE: tl.constexpr, V_SCALE: tl.constexpr,
    DEGREE: tl.constexpr, BLOCK_M: tl.constexpr, ONE_POSITION: tl.constexpr, SPLIT: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: tiles * splits * batch * kv_heads, the longest tiles first.

    q, k, v, out are addressed by their strides in elements (batch or page, head, row); columns are
    contiguous. Everything that varies by sequence is read from device memory, so that a captured
    graph serves every length within its grid.
    """
    if PDL:
        gdc_launch_dependents()  # `fold_kernel` takes its place early and waits for this grid's end
    pid = tl.program_id(0)
    lane = pid % (batch * kv_heads)
    pid //= batch * kv_heads
    kv_head = lane % kv_heads
    b = lane // kv_heads
    split = pid % splits
    tile = tiles - 1 - pid // splits
    q_first, q_len, k_first, kv_len, q_start = _sequence(
        b, cu_q, cu_k, kv_lens, starts, q_len, kv_len, q_start, KEYS
    )
    rows = q_len * GROUP
    if tile * BLOCK_M >= rows:
        return

    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = row < rows
    t = row // GROUP
    head = kv_head * GROUP + row % GROUP
    position = tl.where(valid, q_start + t, -1)
    first = q_start + tile * BLOCK_M // GROUP
    last = q_start + (tl.minimum(tile * BLOCK_M + BLOCK_M, rows) - 1) // GROUP
    lo, hi = _range(first, last, kv_len, window, CAUSAL, WINDOW)
    begin = lo // STEP * STEP
    end = tl.cdiv(hi, STEP) * STEP
    if SPLIT:
        leaf = lo // leaf_keys
        run = tl.cdiv(tl.cdiv(hi, leaf_keys) - leaf, splits)
        begin = tl.maximum(begin, (leaf + split * run) * leaf_keys)
        end = tl.minimum(end, (leaf + (split + 1) * run) * leaf_keys)
        if begin >= end:
            return

    sequence = tl.where(KEYS == "dense", b, 0).to(tl.int64)
    q_row = (q_first + t).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    wide_head = head.to(tl.int64)
    q_rows = sequence * sqb + wide_head * sqh + q_row * sqt
    q_tile = tl.load(
        q + q_rows[:, None] + d[None, :], mask=valid[:, None] & (d < D)[None, :], other=0.0
    )
    k += sequence * skb + kv_head.to(tl.int64) * skh + k_first.to(tl.int64) * sks
    v += sequence * svb + kv_head.to(tl.int64) * svh + k_first.to(tl.int64) * svs
    if K_SCALE:
        a = a * tl.load(k_scale + kv_head)
    mask_rows = None
    if MASK != 0:
        mask_rows = mask + sequence * smb + wide_head * smh + t.to(tl.int64) * smt
    if PAGE != 0:
        table += b.to(tl.int64) * table_stride
    flat = (sequence * q_len + q_row) * (kv_heads * GROUP) + head

    # From `inner` to `outer` every row sees every key, and steps need no masks. Rows of one
    # position see the same keys: the loads' masks hide the others.
    UNMASKED: tl.constexpr = MASK == 0 and not ONE_POSITION
    CHECKED: tl.constexpr = MASK != 0 or ((CAUSAL or WINDOW) and not ONE_POSITION)
    inner = begin
    outer = begin
    if UNMASKED:
        if WINDOW:
            inner = tl.cdiv(tl.maximum(last - window + 1, 0), STEP) * STEP
            inner = tl.minimum(tl.maximum(inner, begin), end)
        outer = tl.minimum(end, kv_len)
        if CAUSAL:
            outer = tl.minimum(outer, first + 1)
        if WINDOW:
            outer = tl.minimum(outer, first + window)
        outer = tl.maximum(outer // STEP * STEP, inner)

    run_m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    run_l = tl.zeros((BLOCK_M,), tl.float32)
    run_o = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    for leaf in tl.range(begin // leaf_keys, tl.cdiv(end, leaf_keys), num_stages=1):
        leaf_begin = tl.maximum(begin, leaf * leaf_keys)
        leaf_end = tl.minimum(end, leaf * leaf_keys + leaf_keys)
        m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        l = tl.zeros((BLOCK_M, 16), tl.float32)  # noqa: E741
        acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
        for part in tl.static_range(3):
            if (part == 0 and UNMASKED and WINDOW) or (part == 1 and UNMASKED) or part == 2:
                part_begin = begin if part == 0 else (inner if part == 1 else outer)
                part_end = inner if part == 0 else (outer if part == 1 else end)
                m, l, acc = _steps(  # noqa: E741
                    m, l, acc, q_tile, k, v, table, mask_rows,
                    tl.maximum(part_begin, leaf_begin), tl.minimum(part_end, leaf_end), lo, hi,
                    kv_len, window, position, skb, sks, svb, svs, sms, a, cap, masked_at, D, DV,
                    PAGE, CAUSAL, WINDOW, MASK, SOFTCAP, DEGREE, part != 1, part != 1 and CHECKED,
                    STAGES,
                )  # fmt: skip
        leaf_l = tl.max(l, axis=1)  # sixteen equal columns
        if SPLIT:
            _store_leaf(partial, stats, leaf, total, flat, valid, m, leaf_l, acc, DV)
        else:
            run_m, run_l, run_o = fold(run_m, run_l, run_o, m, leaf_l, acc)
    if not SPLIT:
        _store_result(
            out, lse, sinks, v_scale, head, kv_head, sequence * sob + wide_head * soh + q_row * sot,
            sequence * slb + wide_head * slh + q_row * slt, valid, run_m, run_l, run_o, LSE, SINKS,
            V_SCALE, dv, DV,
        )  # fmt: skip


@triton.jit(do_not_specialize=_COUNTS)
def fold_kernel(
    partial, stats, out, lse, cu_q, cu_k, kv_lens, starts, sinks, v_scale, q_start, q_len, kv_len,
    q_heads, longest, total, window, leaf_keys, sob, soh, sot, slb, slh, slt,
    DV: tl.constexpr, GROUP: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, V_SCALE: tl.constexpr,
    COLUMNS: tl.constexpr, BATCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Leaves of one query row and COLUMNS of its values, folded in ascending order.

    Grid: (batch * longest * q_heads, column blocks). The partials of BATCH leaves are in flight at
    once; the fold itself is cheap.
    """
    pid = tl.program_id(0)
    head = pid % q_heads
    pid //= q_heads
    t = pid % longest
    b = pid // longest
    q_first, q_len, _, kv_len, q_start = _sequence(
        b, cu_q, cu_k, kv_lens, starts, q_len, kv_len, q_start, KEYS
    )
    if t >= q_len:
        return
    if PDL:
        gdc_wait()
    lo, hi = _range(q_start + t, q_start + t, kv_len, window, CAUSAL, WINDOW)
    sequence = tl.where(KEYS == "dense", b, 0).to(tl.int64)
    flat = (sequence * q_len + q_first + t) * q_heads + head
    dv = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    one = tl.arange(0, 1)
    m = tl.full((1,), float("-inf"), tl.float32)
    l = tl.zeros((1,), tl.float32)  # noqa: E741
    o = tl.zeros((1, COLUMNS), tl.float32)
    for leaf in range(lo // leaf_keys, tl.cdiv(hi, leaf_keys), BATCH):
        loaded = ()
        for i in tl.static_range(BATCH):
            there = (leaf + i) * leaf_keys < hi
            at = tl.cast(leaf + i, tl.int64) * total + flat
            m_i = tl.load(stats + 2 * at + one, mask=there, other=float("-inf"))
            l_i = tl.load(stats + 2 * at + 1 + one, mask=there, other=0.0)
            o_i = tl.load(
                partial + at * DV + dv[None, :], mask=there & (dv < DV)[None, :], other=0.0
            )
            loaded = loaded + ((m_i, l_i, o_i),)  # type: ignore[assignment]  # noqa: RUF005
        for i in tl.static_range(BATCH):
            m_i, l_i, o_i = loaded[i]
            m, l, o = fold(m, l, o, m_i, l_i, o_i)  # noqa: E741
    row = sequence * sob + head.to(tl.int64) * soh + (q_first + t).to(tl.int64) * sot
    lse_row = sequence * slb + head.to(tl.int64) * slh + (q_first + t).to(tl.int64) * slt
    _store_result(
        out, lse, sinks, v_scale, head + one, head // GROUP, row + one, lse_row + one, one == 0, m,
        l, o, LSE, SINKS, V_SCALE, dv, DV,
    )  # fmt: skip
