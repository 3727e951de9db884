"""Attention with exact sums, in NumPy: the definition."""

from __future__ import annotations

import math

import numpy as np

from samebits.contract import functions
from samebits.contract import numerics as nx
from samebits.contract.exact.integers import exact_dot, exact_sum
from samebits.contract.numerics import F32, Array
from samebits.contract.operands import Operand, values
from samebits.errors import ShapeError

#: R as in `contract.FORMULAS`; a key that is not seen takes no part, a row without keys gives +0.
ATTENTION_FORMULA = (
    "R(R32(sum e * v) / S(e)), e = exp(x - max x), x = R32(sum q * k) * scale + mask"
)


def attend(
    input: str, q: Operand, k: Operand, v: Operand, *, scale: float | None = None,
    causal: bool = False, q_start: int | None = None, mask: Array | None = None,
) -> F32:  # fmt: skip
    """fp32 results before their last rounding.

    Args:
        input: storage type of q, k and v.
        q: [..., Hq, T, D].
        k, v: [..., Hkv, S, D] and [..., Hkv, S, Dv]; Hq is a multiple of Hkv.
        scale: rounded to fp32; 1 / sqrt(D) if None.
        causal: row i, at position q_start + i, sees the keys up to its own position.
        q_start: position of row 0; S - T if None.
        mask: broadcasts to [..., Hq, T, S]; bool (True is seen) or fp32 that is added.

    Raises:
        ShapeError, DTypeError: operands that do not fit.
    """
    a, b, c = values(q, input, "q"), values(k, input, "k"), values(v, input, "v")
    if min(a.ndim, b.ndim, c.ndim) < 3 or a.shape[-1] != b.shape[-1] or a.shape[-3] % b.shape[-3]:
        raise ShapeError(f"q {a.shape}, k {b.shape}, v {c.shape}: use [..., heads, length, D]")
    heads, rows, d = a.shape[-3:]
    keys, group = b.shape[-2], heads // b.shape[-3]
    factor = np.array(1 / math.sqrt(max(d, 1)) if scale is None else scale, np.float32)
    start = keys - rows if q_start is None else q_start
    shape = (*a.shape[:-1], keys)
    seen = np.ones(shape, bool)
    if causal:
        seen &= np.arange(keys) <= start + np.arange(rows)[:, None]
    added = None
    if mask is not None and mask.dtype == bool:
        seen &= mask
    elif mask is not None:
        added = np.broadcast_to(np.asarray(mask, np.float32), shape)
    y = np.zeros((*a.shape[:-1], c.shape[-1]), np.float32)
    for i in np.ndindex(a.shape[:-2]):
        kv = (*i[:-1], i[-1] // group)
        for t in range(rows):
            at = np.flatnonzero(seen[i][t])
            if len(at):
                bias = None if added is None else added[i][t][at]
                y[i][t] = _row(a[i][t], b[kv][at], c[kv][at], factor, bias)
    return y


def _row(q: F32, k: F32, v: F32, factor: F32, bias: F32 | None) -> F32:
    x = nx.mul32(exact_dot(q[None], k, None, "fp32")[0], factor)
    if bias is not None:
        x = nx.add32(x, bias)
    # A NaN is passed over here and reaches the result through the sums; -0 becomes +0.
    m = nx.add32(np.fmax.reduce(x, initial=np.float32(-np.inf)), np.float32(0))
    e = functions.exp(nx.sub32(x, m))
    o = exact_dot(e[None], np.ascontiguousarray(v.T), None, "fp32")[0]
    return nx.div32(o, exact_sum(e))
