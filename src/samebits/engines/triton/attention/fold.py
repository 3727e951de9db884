"""The end of an attention: leaves to the workspace and back, the last rounding, the stores."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from samebits.engines.triton.attention.keys import COUNTS, key_range, sequence
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
    partial, stats, leaf, leaves, flat, valid, m, l, acc, width, DV: tl.constexpr,  # noqa: E741
):  # fmt: skip
    """A leaf of rows [M]: `width` columns of o to partial [rows, leaves, DV], m and l to stats
    [rows, leaves, 4]."""
    at = flat * leaves + leaf
    columns = tl.arange(0, acc.shape[1])
    # A leaf that is skipped must not hold a NaN (0 * NaN, where every score is -Inf).
    acc = tl.where((m == float("-inf"))[:, None], 0.0, acc)
    tl.store(
        partial + at[:, None] * DV + columns[None, :], acc,
        mask=valid[:, None] & (columns < width)[None, :],
    )  # fmt: skip
    tl.store(stats + 4 * at, m, mask=valid)
    tl.store(stats + 4 * at + 1, l, mask=valid)


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


@triton.jit(do_not_specialize=COUNTS)
def fold_kernel(
    partial, stats, out, lse, cu_q, cu_k, kv_lens, starts, sinks, v_scale, q_start, q_len, kv_len,
    q_heads, longest, leaves, window, leaf_keys, sob, soh, sot, slb, slh, slt,
    DV: tl.constexpr, GROUP: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, V_SCALE: tl.constexpr,
    COLUMNS: tl.constexpr, BATCH: tl.constexpr, PDL: tl.constexpr,
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
    if PDL:
        gdc_wait()
    lo, hi = key_range(q_start + t, q_start + t, kv_len, window, CAUSAL, WINDOW)
    own = tl.where(KEYS == "dense", b, 0).to(tl.int64)
    flat = (own * q_len + q_first + t) * q_heads + head
    stats += 4 * flat * leaves
    partial += flat * leaves * DV
    stop = tl.cdiv(hi, leaf_keys)

    dv = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    top = float("-inf")
    l = tl.zeros((1,), tl.float32)  # noqa: E741
    o = tl.zeros((1, COLUMNS), tl.float32)
    for block in range(lo // leaf_keys, stop, _BLOCK):
        at = block + tl.arange(0, _BLOCK)
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
            for i in tl.static_range(BATCH):
                old_i, new_i, l_i, o_i = loaded[i]
                l = tl.fma(l, old_i, l_i * new_i)  # noqa: E741
                wide = tl.broadcast_to(old_i[:, None], o.shape)
                o = tl.fma(o, wide, o_i * new_i[:, None])
    one = tl.arange(0, 1)
    row = own * sob + head.to(tl.int64) * soh + (q_first + t).to(tl.int64) * sot
    lse_row = own * slb + head.to(tl.int64) * slh + (q_first + t).to(tl.int64) * slt
    m = tl.zeros((1,), tl.float32) + top
    store_result(
        out, lse, sinks, v_scale, head + one, head // GROUP, row + one, lse_row + one, one == 0, m,
        l, o, dv, DV, SINKS, LSE, V_SCALE,
    )  # fmt: skip
