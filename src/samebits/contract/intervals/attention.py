"""`AttentionContract.interval`: softmax(q k^T) v in balls, one head at a time.

With weights p = e^(x - m) and result o = sum p v / sum p, a weight that is computed as p (1 + d)
moves the result by p d (v - o) / sum p: what all weights have in common cancels. So the errors of
the weights are kept by themselves, and meet the values only at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from samebits.contract.arithmetic import FORMATS, Arithmetic
from samebits.contract.intervals import dot as bounds
from samebits.contract.intervals.ball import EXACT, ROUNDED, Ball, Steps, ball
from samebits.contract.intervals.interval import (
    Interval,
    around,
    evaluated,
    fp32_ends,
    known_order,
    made,
)
from samebits.contract.numerics import F32, F64
from samebits.contract.operands import Call, Operand, dtype_name
from samebits.errors import ContractError

#: Keys after which a kernel may raise its maximum at the earliest, and round a factor for it.
_RESCALED_EVERY = 16


class Attention(Protocol):
    """What is asked of an `AttentionContract`."""

    @property
    def arithmetic(self) -> Arithmetic: ...
    @property
    def leaf(self) -> int: ...
    @property
    def exp2(self) -> str: ...
    @property
    def probabilities(self) -> str: ...
    @property
    def output(self) -> str: ...

    @property
    def operands(self) -> Callable[..., Call]: ...
    @property
    def evaluate(self) -> Callable[..., Operand]: ...


def interval(
    contract: Attention,
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    order: str,
    out_dtype: Any = "fp32",
    engine: str | None = None,
    **options: Any,
) -> Interval:
    """See `AttentionContract.interval`."""
    known_order(order, ("contract", "any"))
    out = dtype_name(out_dtype)
    if out not in ("fp32", contract.output):
        raise ContractError(f"this contract rounds to {contract.output}, not to {out}")
    call = contract.operands(q, k, v, **options)
    exact = _heads(contract, call, EXACT)
    if order == "any":
        return made(*fp32_ends(*_heads(contract, call, ROUNDED).ends), exact, out)
    y = contract.evaluate(q, k, v, out_dtype=out_dtype, engine=engine, **options)
    return around(evaluated(y, out), exact)


def _heads(contract: Attention, call: Call, do: Steps) -> Ball:
    shape = (*call.q.shape[:-1], call.v.shape[-1])
    center, radius = np.zeros(shape), np.zeros(shape)
    with np.errstate(all="ignore"):
        for i in np.ndindex(shape[:-2]):
            bias = None if call.bias is None else call.bias[i]
            found = _head(contract, call, call.q[i], call.k[i], call.v[i], call.seen[i], bias, do)
            center[i], radius[i] = found.center, found.radius
    return Ball(center, radius)


def _head(
    contract: Attention,
    call: Call,
    q: F32,
    k: F32,
    v: F32,
    seen: npt.NDArray[np.bool_],
    bias: F32 | None,
    do: Steps,
) -> Ball:
    """One head: q [T, D], k [S, D], v [S, Dv], seen [T, S] -> [T, Dv]."""
    scores = bounds.mass(q, k, contract.arithmetic, counted=True)
    x = _exponents(contract, call, scores, bias, do)
    if call.sink is not None:  # one more key, without a value
        sink = do.add(Ball.exactly(np.full((len(q), 1), call.sink)), Ball.exactly(np.zeros(1)))
        x = Ball(np.hstack([x.center, sink.center]), np.hstack([x.radius, sink.radius]))
        seen = np.hstack([seen, np.full((len(q), 1), call.sink > -np.inf)])
        v = np.vstack([v, np.zeros_like(v[:1])])
    seen = seen & (x.center != -np.inf)
    top = np.where(seen, x.center, -np.inf).max(1, initial=-np.inf)[:, None]
    nothing = np.equal(top, -np.inf)
    if bias is not None:  # it may have met the maximum before the score
        x = x.wider(do.unit * np.where(nothing, 0, np.abs(top) + 1))
    d = do.sub(x, Ball.exactly(np.where(nothing, 0, top)))
    # The maximum that is taken off may be a whole power of two above.
    p = do.exp(d.wider(2 * do.unit))
    lost = p.radius + p.largest * _share(contract, do, len(v)) + _least(contract, do)
    weight, lost = np.where(seen, p.center, 0), np.where(seen, lost, 0)

    finite = np.logical_and.reduce(np.isfinite(v), 1)
    terms = np.where(finite[:, None], v, 0).astype(np.float64)
    ones = np.ones((len(v), 1))
    numerator, denominator = weight @ terms, weight.sum(1)[:, None]
    o = numerator / denominator
    # Sums of the weights as they are computed, in any order.
    error_n = _sum_error(contract, weight + lost, terms, do)
    error_d = _sum_error(contract, weight + lost, ones, do)
    moved = lost @ np.abs(terms) + np.abs(o) * lost.sum(1)[:, None]
    moved = moved + error_n + np.abs(o) * error_d
    least = denominator - lost.sum(1)[:, None] - error_d
    unknown = (least <= 0) | np.logical_or.reduce(seen & ~finite, 1, keepdims=True)
    radius = np.where(unknown, np.inf, moved / least * (1 + 2.0**-40))
    y = do.add(Ball(o, radius), Ball.exactly(np.zeros(1)))  # the division's rounding
    if call.v_scale is not None:
        y = do.mul(y, Ball.exactly(np.float32(call.v_scale)))
    return Ball(np.where(nothing, 0, y.center), np.where(nothing, 0, y.radius))


def _exponents(
    contract: Attention, call: Call, of: bounds.Mass, bias: F32 | None, do: Steps
) -> Ball:
    """The softmax's exponents, to the base e: [T, S]."""
    s = of.total
    if do.unit:
        steps = -(-of.terms // contract.arithmetic.block)
        s = s.wider(bounds.any_order(of, contract.arithmetic, steps).most)
    cap = call.softcap
    factor = call.scale * (1 if call.k_scale is None else float(np.float32(call.k_scale)))
    # Factors are products of constants that were rounded themselves.
    x = do.mul(s, ball(np.float64(factor), 4 * do.unit * abs(factor)))
    if cap is not None:
        z = x.center / cap
        x = ball(cap * np.tanh(z), x.radius + cap * (8 * do.unit + 2.0**-49))
    # -Inf says "not seen" only in a bias.
    x = Ball(np.where(np.isfinite(x.center), x.center, np.nan), x.radius)
    if bias is not None:
        x = do.add(x, Ball.exactly(bias))
        x = x.wider(2 * do.unit * np.where(np.isfinite(bias), np.abs(bias), 0))
    return x


def _share(contract: Attention, do: Steps, keys: int) -> float:
    """What a weight may lose as a share of itself, after its exponential."""
    if not do.unit:
        return 0.0
    rounded = 2.0 ** -(FORMATS[contract.probabilities].fraction + 1)
    function = {"poly(4)": 2.0**-18, "poly(3)": 2.0**-13}.get(contract.exp2, do.function)
    rescaled = -(-keys // _RESCALED_EVERY) * (do.function + do.unit)
    return (rounded + function + rescaled) * (1 + 2.0**-6)


def _least(contract: Attention, do: Steps) -> float:
    """What rounding a subnormal weight may lose."""
    fmt = FORMATS[contract.probabilities]
    return 2.0 ** (fmt.min_exponent - fmt.fraction - 1) if do.unit else 0.0


def _sum_error(contract: Attention, weight: F64, v: F64, do: Steps) -> F64:
    """How far a computed sum of weight [T, S] times v [S, C] may be from the exact one."""
    of = bounds.mass(weight, v.T, contract.arithmetic, counted=True)
    if not do.unit:
        return of.total.radius
    # Leaves of keys that are seen need not begin where a block does.
    steps = -(-of.terms // contract.arithmetic.block) + -(-of.terms // contract.leaf)
    return bounds.any_order(of, contract.arithmetic, steps).most + of.total.radius
