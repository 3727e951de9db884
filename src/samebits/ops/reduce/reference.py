"""The reductions in NumPy, written to be read. Arrays hold fp32 values; the result is fp32.

Independent of the engine: `row_tree` walks one leaf after the other, one lane step at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from samebits.contract import functions
from samebits.contract.numerics import F32, LANES, ROW_LEAF, Array, add32, canonical, fma32, mul32

Step = Callable[[Array, Array], F32]


def row_tree(x: Array, identity: float, take: Step, join: Step) -> F32:
    """Reduces the last axis of `x`: ``take(acc, element)`` in the lanes, ``join`` above them."""
    x = np.asarray(x, np.float32)
    levels: list[F32 | None] = []
    for start in range(0, x.shape[-1], ROW_LEAF):
        leaf = x[..., start : start + ROW_LEAF]
        lanes = np.full((*x.shape[:-1], LANES), identity, np.float32)
        for k in range(0, leaf.shape[-1], LANES):
            some = leaf[..., k : k + LANES]
            used = some.shape[-1]
            lanes[..., :used] = take(lanes[..., :used], some)
        for width in (8, 4, 2, 1):
            lanes = join(lanes[..., :width], lanes[..., width : 2 * width])
        carry, level = lanes[..., 0], 0
        while level < len(levels) and (earlier := levels[level]) is not None:
            carry, levels[level] = join(earlier, carry), None
            level += 1
        levels[level : level + 1] = [carry]
    acc: F32 | None = None
    for partial in levels:
        if partial is not None:
            acc = partial if acc is None else join(partial, acc)
    return np.full(x.shape[:-1], identity, np.float32) if acc is None else acc


def sum(x: Array) -> F32:
    """S(x): IEEE additions."""
    return row_tree(x, 0.0, add32, add32)


def squares(x: Array) -> F32:
    """Q(x): ``fma(x, x, acc)`` in the lanes, additions above."""
    return row_tree(x, 0.0, lambda acc, v: fma32(v, v, acc), add32)


def nansum(x: Array) -> F32:
    """S over the elements that are not NaN."""
    return row_tree(x, 0.0, lambda acc, v: np.where(np.isnan(v), acc, add32(acc, v)), add32)


def prod(x: Array) -> F32:
    """Product along the same tree."""
    return row_tree(x, 1.0, mul32, mul32)


def divided(x: Array, n: float) -> F32:
    """IEEE division by a count."""
    with np.errstate(all="ignore"):
        return canonical(np.asarray(x, np.float32) / np.float32(n))


def mean(x: Array) -> F32:
    """S(x) / n."""
    return divided(sum(x), x.shape[-1])


def var(x: Array, correction: float = 1) -> F32:
    """Q(x - mean) / max(0, n - correction)."""
    with np.errstate(all="ignore"):
        d = canonical(np.asarray(x, np.float32) - mean(x)[..., None])
    return divided(squares(d), max(0.0, x.shape[-1] - correction))


def root(x: Array) -> F32:
    """IEEE square root."""
    with np.errstate(all="ignore"):
        return canonical(np.sqrt(np.asarray(x, np.float32)))


def std(x: Array, correction: float = 1) -> F32:
    """Square root of `var`."""
    return root(var(x, correction))


def vector_norm(x: Array, order: float) -> F32:
    """Norms of order 0, 1, 2, inf, -inf."""
    x = np.asarray(x, np.float32)
    if order == 2:
        return root(squares(x))
    if order == 1:
        return sum(np.abs(x))
    if order == 0:
        return row_tree(
            x, 0.0, lambda acc, v: np.where(v == 0, acc, add32(acc, np.float32(1))), add32
        )
    return canonical(np.max(np.abs(x), axis=-1) if order > 0 else np.min(np.abs(x), axis=-1))


def maximum(x: Array) -> F32:
    """The exact maximum; NaN is passed over; a zero is +0; no element: -inf."""
    m = np.fmax.reduce(np.asarray(x, np.float32), axis=-1, initial=np.float32(-np.inf))
    return add32(m, np.float32(0))


def exp_sum(x: Array, m: Array) -> F32:
    """S(exp(x - m))."""
    with np.errstate(all="ignore"):
        return sum(functions.exp(canonical(np.asarray(x, np.float32) - m[..., None])))


def logsumexp(x: Array) -> F32:
    """log(S(exp(x - m))) + m, with 0 for an infinite m."""
    m = maximum(x)
    m = np.where(np.isinf(m), np.float32(0), m)
    return add32(functions.log(exp_sum(x, m)), m)
