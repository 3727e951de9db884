"""The attention contract, evaluated slowly in NumPy. This file defines the bits.

For one query row, take the keys it sees (causal, window and mask taken into account) in order of
position. A key that is not seen is absent: its K and V are never touched, and what follows counts
only the keys that are seen. So padding on either side, a rolled sliding-window cache, chunks, pages
and neighbours cannot matter.

score      s = fma chain over d ascending, from +0, in fp32
exponent   x = s * a                     a = fp32(scale * log2 e), one multiplication
           x = tanh(s * a) * b           with softcap: a = fp32(scale / cap),
                                         b = fp32(cap * log2 e), tanh = `softcap_tanh`
           x = fma(bias, fp32(log2 e), x)   with an additive mask
leaf       512 consecutive seen keys: m = ceil(max x), NaN ignored;
           p = 2^(x - m) by the polynomial `exp2_flush` (0 below 2^-126), rounded once to V's type;
           o[d] = fma chain of p * v and l = chain of additions of p, both from +0, ascending
fold       leaves ascending; the first is taken as it is. For the next (m', l', o'):
           if m <= m':  o = fma(o, 2^(m - m'), o'), m = m'     else:  o = fma(o', 2^(m' - m), o)
           and l alike. 2^n is exact, and 0 for n < -126.
sinks      one more key after all others, without a value: x = sink * fp32(log2 e), m' = ceil(x),
           l' = 2^(x - m'); l is folded, o is multiplied by its power of two. -Inf means no sink.
result     o / l, then one rounding to the type of Q. A row that sees no key is +0.
logsumexp  fma(m, fp32(ln 2), log l); -Inf for a row that sees no key.

An additive mask masks a key where it is -Inf or its type's lowest finite value. Every NaN stored is
the canonical one.

The power-of-two maximum is why the fold rounds only in its additions: Milakov and Gimelshein's
online softmax (2018) rescales by exp(m - m'), which rounds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from samebits.contract.functions import exp2_flush, log, softcap_tanh
from samebits.contract.numerics import F32, add32, canonical, fma32, mul32, round_to

LEAF = 512
_LOG2E = np.float32(math.log2(math.e))
_LN2 = np.float32(math.log(2))


def visible_keys(
    q_len: int,
    kv_len: int,
    *,
    causal: bool = False,
    q_start: int = 0,
    window: int | None = None,
) -> npt.NDArray[np.bool_]:
    """Which keys each row sees by position alone: [q_len, kv_len]."""
    row = q_start + np.arange(q_len)[:, None]
    key = np.arange(kv_len)[None, :]
    seen = np.ones((q_len, kv_len), bool)
    if causal:
        seen &= key <= row
    if window is not None:
        seen &= np.abs(row - key) < window
    return seen


def attention_rows(
    q: F32,
    k: F32,
    v: F32,
    seen: npt.NDArray[np.bool_],
    *,
    scale: float,
    dtype: str = "fp32",
    bias: F32 | None = None,
    softcap: float | None = None,
    sink: float | None = None,
) -> tuple[F32, F32]:
    """One head: the contract above for all of its rows at once.

    Args:
        q: [T, D] fp32 values (bf16 and fp16 widened exactly).
        k: [S, D]; v: [S, Dv].
        seen: [T, S], which keys a row sees.
        scale: factor of the scores.
        dtype: "fp32", "bf16" or "fp16": the storage type of Q, K and V.
        bias: [T, S] additive mask, or None.
        softcap: cap of the scores, or None.
        sink: the head's sink logit, or None.

    Returns:
        [T, Dv] values rounded to `dtype`, held as fp32, and the logsumexp [T].
    """
    rows = q.shape[0]
    counts = seen.sum(1)
    longest = int(counts.max(initial=0))
    order = np.argsort(~seen, axis=1, kind="stable")[:, :longest]  # seen keys first, ascending
    valid = np.arange(longest)[None, :] < counts[:, None]

    s = np.zeros((rows, longest), np.float32)
    for i in range(q.shape[1]):
        s = fma32(q[:, i, None], k[order, i], s)
    x = _exponent(s, scale, softcap)
    if bias is not None:
        x = fma32(np.take_along_axis(bias, order, 1), _LOG2E, x)

    m = np.full(rows, -np.inf, np.float32)
    l = np.zeros(rows, np.float32)  # noqa: E741
    o = np.zeros((rows, v.shape[1]), np.float32)
    for begin in range(0, longest, LEAF):
        leaf = slice(begin, begin + LEAF)
        top = np.fmax.reduce(np.where(valid[:, leaf], x[:, leaf], -np.inf), axis=1)
        leaf_m = np.where(np.isnan(top), np.float32(-np.inf), np.ceil(top)).astype(np.float32)
        p = round_to(exp2_flush(add32(x[:, leaf], -leaf_m[:, None])), dtype)
        leaf_l, leaf_o = np.zeros_like(l), np.zeros_like(o)
        for j in range(p.shape[1]):
            here = valid[:, begin + j]
            leaf_l = np.where(here, add32(leaf_l, p[:, j]), leaf_l)
            chain = fma32(p[:, j, None], v[order[:, begin + j]], leaf_o)
            leaf_o = np.where(here[:, None], chain, leaf_o)
        some = valid[:, begin]
        if begin == 0:
            new_m, new_l, new_o = leaf_m, leaf_l, leaf_o
        else:
            new_m, new_l = _fold(m, l, leaf_m, leaf_l)
            new_o = _fold(m[:, None], o, leaf_m[:, None], leaf_o)[1]
        m, l = np.where(some, new_m, m), np.where(some, new_l, l)  # noqa: E741
        o = np.where(some[:, None], new_o, o)

    if sink is not None and sink != -math.inf:
        x_sink = np.broadcast_to(mul32(np.float32(sink), _LOG2E), rows)
        m_sink = np.ceil(x_sink)
        factor = np.where(m <= m_sink, _power(add32(m, -m_sink)), np.float32(1))
        o = mul32(o, factor[:, None])
        m, l = _fold(m, l, m_sink, exp2_flush(add32(x_sink, -m_sink)))  # noqa: E741
    with np.errstate(all="ignore"):
        total = np.where((counts == 0) & (l == 0), np.float32(1), l)
        out = round_to(canonical(o / total[:, None]), dtype)
    return out, fma32(m, _LN2, log(l))


def _exponent(s: F32, scale: float, softcap: float | None) -> F32:
    if softcap is None:
        return mul32(s, np.float32(scale * math.log2(math.e)))
    capped = softcap_tanh(mul32(s, np.float32(scale / softcap)))
    return mul32(capped, np.float32(softcap * math.log2(math.e)))


def _power(n: npt.NDArray[Any]) -> F32:
    """2^n for integers n <= 0, and 0 below -126 or for NaN."""
    inside = n >= -126
    power = np.ldexp(np.float32(1), np.where(inside, n, 0).astype(int))
    return canonical(np.where(inside, power, np.float32(0)))


def _fold(m: F32, x: F32, m1: F32, x1: F32) -> tuple[F32, F32]:
    """The running (m, x) with the next (m1, x1) folded in; m is the maximum of both."""
    up = m <= m1
    top = np.where(up, m1, m)
    power = _power(add32(np.where(up, m, m1), -top))
    return top, fma32(np.where(up, x, x1), power, np.where(up, x1, x))
