"""Attention as a tensor core computes it: the online softmax in steps of 64 keys, evaluated.

`attention.AttentionContract` says what the numbers mean; this is its evaluation for contracts whose
maximum is "ceil(64)". All rows of a head at once; a row's bits come from that row alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samebits.contract import functions
from samebits.contract import numerics as nx
from samebits.contract.arithmetic import BlockFma
from samebits.contract.dot import chain
from samebits.contract.numerics import F32, Array

#: Keys of a step: the maximum is looked at, and raised, once for each.
STEP = 64
LOG2E = functions.LOG2E
LN2 = np.array(np.log(2), np.float32)
Seen = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Exponents:
    """Scores or exponents of rows, [T, S] fp32, and what turns them into x - m.

    Attributes:
        value: the scores s if `factor` is given, else x itself.
        factor: a of x = s * a, which is not rounded before the maximum is subtracted.
        bias: what an additive mask adds to scores, to the base e.
    """

    value: F32
    factor: F32 | None
    bias: F32 | None = None

    def top(self, keys: slice, seen: Seen) -> F32:
        """The largest x of the seen keys, rounded, [T]: -Inf if there is none, NaN if one is."""
        x = self.value[:, keys]
        x = x if self.factor is None else nx.mul32(x, self.factor)
        x = x if self.bias is None else nx.fma32(self.bias[:, keys], LOG2E, x)
        found: F32 = np.where(seen, x, np.float32(-np.inf)).max(1, initial=-np.inf)
        return found

    def below(self, keys: slice, m: F32) -> F32:
        """x - m, [T, n], rounded once, and before it where a bias meets m; -Inf counts as 0."""
        m = np.where(m == -np.inf, np.float32(0), m)[:, None]
        if self.factor is None:
            return nx.sub32(self.value[:, keys], m)
        added = -m if self.bias is None else nx.fma32(self.bias[:, keys], LOG2E, -m)
        return nx.fma32(self.value[:, keys], self.factor, added)


def power(n: Array) -> F32:
    """2^n for integers n <= 0: exact, and 0 below -126 or for NaN."""
    inside = n >= -126
    powers: F32 = np.ldexp(np.float32(1), np.where(inside, n, 0).astype(int)).astype(np.float32)
    return np.where(inside, powers, np.float32(0))


def maximum(a: Array, b: Array) -> F32:
    """The larger one, NaN if one is NaN."""
    with np.errstate(all="ignore"):
        return nx.canonical(np.maximum(a, b))


def attend(
    x: Exponents,
    v: F32,
    seen: Seen,
    arithmetic: BlockFma,
    *,
    leaf: int,
    exp2: Callable[[F32], F32],
    probabilities: str,
    engine: str | None = None,
) -> tuple[F32, F32, F32]:
    """All leaves folded in ascending order.

    Args:
        x: the rows' exponents.
        v: [S, Dv] values.
        seen: [T, S].
        leaf, probabilities: of the contract.
        exp2: 2^d of the contract, for d <= 0.

    Returns:
        m [T], l [T] and o [T, Dv]: maximum, denominator and numerator.
    """
    rows, keys = seen.shape
    terms = np.concatenate([v, np.ones((keys, 1), np.float32)], axis=1)  # o and l together
    m = np.full(rows, -np.inf, np.float32)
    acc = np.zeros((rows, terms.shape[1]), np.float32)
    for start in range(0, keys, leaf):
        if not seen[:, start : start + leaf].any():
            continue
        leaf_m = np.full_like(m, -np.inf)
        leaf_acc = np.zeros_like(acc)
        for at in range(start, min(start + leaf, keys), STEP):
            step = slice(at, min(at + STEP, start + leaf, keys))
            new_m = maximum(leaf_m, np.ceil(x.top(step, seen[:, step])))
            weight = exp2(x.below(step, new_m))
            p = nx.round_to(np.where(seen[:, step], weight, np.float32(0)), probabilities)
            leaf_acc = nx.mul32(leaf_acc, power(nx.sub32(leaf_m, new_m))[:, None])
            leaf_acc = _chain_seen(p, terms[step], seen[:, step], leaf_acc, arithmetic, engine)
            leaf_m = new_m
        m, acc = fold(m, acc, leaf_m, leaf_acc)
    return m, acc[:, -1], acc[:, :-1]


def _chain_seen(
    p: F32, terms: F32, seen: Seen, acc: F32, arithmetic: BlockFma, engine: str | None
) -> F32:
    """acc + p @ terms, the terms of keys that a row does not see being +0 for it."""
    if np.isfinite(terms).all():
        return chain(p, terms.T, arithmetic, acc, engine)
    out = np.empty_like(acc)
    patterns, which = np.unique(seen, axis=0, return_inverse=True)
    for i, pattern in enumerate(patterns):
        rows = which.reshape(-1) == i
        mine = np.where(pattern[:, None], terms, np.float32(0))
        out[rows] = chain(p[rows], mine.T, arithmetic, acc[rows], engine)
    return out


def fold(m: F32, acc: F32, leaf_m: F32, leaf_acc: F32) -> tuple[F32, F32]:
    """The next leaf (leaf_m [T], leaf_acc [T, C]) folded into the running (m, acc).

    A leaf whose maximum is -Inf is skipped.
    """
    top = maximum(m, leaf_m)
    old, new = power(nx.sub32(m, top))[:, None], power(nx.sub32(leaf_m, top))[:, None]
    folded = nx.fma32(acc, old, nx.mul32(leaf_acc, new))
    return top, np.where((leaf_m == -np.inf)[:, None], acc, folded)


def fold_sink(m: F32, l: F32, o: F32, sink: float) -> tuple[F32, F32, F32]:  # noqa: E741
    """The sink's logit folded in after all leaves: it has a weight and no value."""
    x = np.full_like(m, nx.mul32(np.float32(sink), LOG2E))
    if x[0] == -np.inf:
        return m, l, o
    sink_m = np.ceil(x)
    weight = functions.exp2_flush(nx.sub32(x, sink_m))[:, None]
    top, folded = fold(m, l[:, None], sink_m, weight)
    return top, folded[:, 0], nx.mul32(o, power(nx.sub32(m, top))[:, None])


def result(m: F32, l: F32, o: F32) -> tuple[F32, F32]:  # noqa: E741
    """o / l [T, Dv] and the logsumexp [T]; +0 and -Inf where the maximum is -Inf."""
    nothing = m == -np.inf
    y = nx.div32(o, np.where(nothing, np.float32(1), l)[:, None])
    y = np.where(nothing[:, None], np.float32(0), y)
    lse = np.where(nothing, np.float32(-np.inf), nx.fma32(m, LN2, functions.log(l)))
    return y, lse
