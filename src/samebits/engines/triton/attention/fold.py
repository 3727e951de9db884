"""The end of an attention: leaves to the workspace and back, the last rounding, the stores."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from samebits.engines.triton import path
from samebits.engines.triton.attention.keys import COUNTS, LISTS, key_range, sequence
from samebits.engines.triton.attention.softmax import (
    fold_sink,
    larger,
    logsumexp,
    power,
    result,
)

#: Leaves whose factors are computed side by side, one or more a lane.
_BLOCK = tl.constexpr(128)


@triton.jit
def store_leaf(
    partial, stats, seals, leaf, leaves, flat, valid, begin, end, m, l, acc, first,  # noqa: E741
    DV: tl.constexpr, SLICE: tl.constexpr, CHECK: tl.constexpr,
):  # fmt: skip
    """A leaf of rows [M]: columns of o from `first` on to partial [rows, leaves, DV], m and l to
    stats [rows, leaves, 4].

    With CHECK, its seal to seals [rows, leaves, 2 + slices]: the word of the keys [begin, end), one
    or M of each; the sum of the views of m and l; the sums of o in slices of SLICE columns.
    """
    width = DV - first
    at = flat * leaves + leaf
    columns = tl.arange(0, acc.shape[1])
    # A leaf that is skipped must not hold a NaN (0 * NaN, where every score is -Inf).
    acc = tl.where((m == float("-inf"))[:, None], 0.0, acc)
    tl.store(
        partial + at[:, None] * DV + first + columns[None, :], acc,
        mask=valid[:, None] & (columns < width)[None, :],
    )  # fmt: skip
    tl.store(stats + 4 * at, m, mask=valid)
    tl.store(stats + 4 * at + 1, l, mask=valid)
    if CHECK:
        slices: tl.constexpr = (DV + SLICE - 1) // SLICE
        seal = seals + at * (2 + slices)
        word = path.leaf_word(begin, end).to(tl.int64)
        tl.store(seal, tl.broadcast_to(word, seal.shape), mask=valid)
        tl.store(seal + 1, path.views(m) + path.views(l), mask=valid)
        values = path.views(acc)
        for i in tl.static_range(acc.shape[1] // SLICE):
            own = (columns >= i * SLICE) & (columns < tl.minimum(i * SLICE + SLICE, width))
            own_sum = tl.sum(tl.where(own[None, :], values, 0), axis=1)
            there = valid & (i * SLICE < width)
            tl.store(seal + 2 + first // SLICE + i, own_sum, mask=there)


@triton.jit
def store_result(
    out, lse, sinks, v_scale, head, kv_head, row, lse_row, valid, m, l, o, dv,  # noqa: E741
    DV: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, V_SCALE: tl.constexpr,
):  # fmt: skip
    """Sink, division, last rounding, and the stores of rows [M] and their columns `dv`."""
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


@triton.jit
def _factors(stats, at, carry, there):
    """What leaves [N] are multiplied by in the fold, and the maximum before and after each.

    The maximum over all leaves up to each is exact, so it may be found in any order; `carry` is
    that of the leaves before. A leaf that is skipped has the factors 1 and -0: x * 1 + -0 is x.
    """
    m = tl.load(stats + 4 * at, mask=there, other=float("-inf"))
    before = tl.load(stats + 4 * at - 4, mask=there & (tl.arange(0, m.shape[0]) > 0), other=carry)
    top = larger(tl.associative_scan(m, 0, larger), carry)
    before = larger(tl.associative_scan(before, 0, larger), carry)
    skip = m == float("-inf")
    old = tl.where(skip, 1.0, power(before - top))
    new = tl.where(skip, -0.0, power(m - top))
    return old, new, tl.reduce(top, 0, larger)


@triton.jit
def _unsealed(stats, seals, at, there, size: tl.constexpr):
    """The views of m and l of leaves [N], less the sums that were sealed."""
    m = tl.load(stats + 4 * at, mask=there, other=0.0)
    l = tl.load(stats + 4 * at + 1, mask=there, other=0.0)  # noqa: E741
    sealed = tl.load(seals + at * size + 1, mask=there, other=0)
    return tl.sum(path.views(m) + path.views(l) - sealed, axis=0)


@triton.jit
def _opened(
    sums, first, stop, column, size: tl.constexpr, DV: tl.constexpr, COLUMNS: tl.constexpr,
    SLICE: tl.constexpr,
):  # fmt: skip
    """The sealed sums of COLUMNS columns from `column` on of the leaves [first, stop). Breaks the
    seals."""
    total = tl.full((), 0, tl.int64)
    for block in range(first, stop, _BLOCK):
        at = block + tl.arange(0, _BLOCK)
        for i in tl.static_range(COLUMNS // SLICE):
            seal = sums + at * size + column // SLICE + i
            there = (at < stop) & (column + i * SLICE < DV)
            sealed = tl.load(seal, mask=there, other=0)
            tl.store(seal, ~sealed, mask=there)
            total += tl.sum(sealed, axis=0)
    return total


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS)
def fold_kernel(
    partial, stats, out, lse, seals, ticket, cu_q, cu_k, kv_lens, starts, sinks, v_scale, q_start,
    q_len, kv_len, q_heads, longest, leaves, window, leaf_keys, sob, soh, sot, slb, slh, slt,
    DV: tl.constexpr, GROUP: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, V_SCALE: tl.constexpr,
    COLUMNS: tl.constexpr, BATCH: tl.constexpr, SLICE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Leaves of one query row and COLUMNS of its values, folded in ascending order.

    Grid: (batch * longest * q_heads, column blocks). The partials of BATCH leaves are in flight at
    once. What they are multiplied by does not depend on the values and is computed before, side by
    side; so the chain has one product and one fma a leaf.
    """
    pid = tl.program_id(0)
    head = pid % q_heads
    pid //= q_heads
    t = pid % longest
    b = pid // longest
    q_first, q_len, _, kv_len, q_start = sequence(
        b, cu_q, cu_k, kv_lens, starts, q_len, kv_len, q_start, KEYS
    )
    if t >= q_len:
        return
    CHECK: tl.constexpr = ticket is not None
    if CHECK:
        seed = path.expected_of(ticket)
        length = path.length_of(ticket)
    if PDL:
        gdc_wait()
    lo, hi = key_range(q_start + t, q_start + t, kv_len, window, CAUSAL, WINDOW)
    own = tl.where(KEYS == "dense", b, 0).to(tl.int64)
    flat = (own * q_len + q_first + t) * q_heads + head
    stats += 4 * flat * leaves
    partial += flat * leaves * DV
    stop = tl.cdiv(hi, leaf_keys)
    slices: tl.constexpr = (DV + SLICE - 1) // SLICE
    size: tl.constexpr = 2 + slices
    if CHECK:
        seals += flat * leaves * size
        digest = tl.full((1,), 0, tl.uint32) + seed
        heads = tl.full((), 0, tl.int64)  # what is folded less what was sealed: of m and l ...
        off = tl.zeros((1, COLUMNS), tl.int64)  # ... and of o

    dv = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    top = float("-inf")
    l = tl.zeros((1,), tl.float32)  # noqa: E741
    o = tl.zeros((1, COLUMNS), tl.float32)
    for block in range(lo // leaf_keys, stop, _BLOCK):
        at = block + tl.arange(0, _BLOCK)
        if CHECK:
            heads += _unsealed(stats, seals, at, at < stop, size)
        old, new, top = _factors(stats, at, top, at < stop)
        tl.store(stats + 4 * at + 2, old, mask=at < stop)  # the same from every block of columns
        tl.store(stats + 4 * at + 3, new, mask=at < stop)
        tl.debug_barrier()
        for leaf in range(block, tl.minimum(block + _BLOCK, stop), BATCH):
            loaded = ()
            for i in tl.static_range(BATCH):
                there = leaf + i < stop
                entry = stats + 4 * (leaf + i) + tl.arange(0, 1)
                old_i = tl.load(entry + 2, mask=there, other=1.0)
                new_i = tl.load(entry + 3, mask=there, other=-0.0)
                l_i = tl.load(entry + 1, mask=there, other=0.0)
                at_i = partial + (leaf + i) * DV + dv[None, :]
                o_i = tl.load(at_i, mask=there & (dv < DV)[None, :], other=0.0)
                loaded = loaded + ((old_i, new_i, l_i, o_i),)  # noqa: RUF005
                if CHECK:
                    word = tl.load(seals + (leaf + i) * size + tl.arange(0, 1), mask=there)
                    digest = tl.where(there, path.fold_word(digest, word.to(tl.uint32)), digest)
                    off += path.views(o_i)
            for i in tl.static_range(BATCH):
                old_i, new_i, l_i, o_i = loaded[i]
                l = tl.fma(l, old_i, l_i * new_i)  # noqa: E741
                wide = tl.broadcast_to(old_i[:, None], o.shape)
                o = tl.fma(o, wide, o_i * new_i[:, None])
    if CHECK:
        path.judge(ticket, heads == 0)
        sealed = _opened(seals + 2, lo // leaf_keys, stop, tl.program_id(1) * COLUMNS, size,
                         DV, COLUMNS, SLICE)  # fmt: skip
        path.judge(ticket, tl.sum(off) == sealed)
        path.judge(ticket, digest == path.ascending(seed, lo, hi, length))
    one = tl.arange(0, 1)
    row = own * sob + head.to(tl.int64) * soh + (q_first + t).to(tl.int64) * sot
    lse_row = own * slb + head.to(tl.int64) * slh + (q_first + t).to(tl.int64) * slt
    m = tl.zeros((1,), tl.float32) + top
    store_result(
        out, lse, sinks, v_scale, head + one, head // GROUP, row + one, lse_row + one, one == 0, m,
        l, o, dv, DV, SINKS, LSE, V_SCALE,
    )  # fmt: skip
