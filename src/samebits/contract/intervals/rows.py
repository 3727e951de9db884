"""`RowContract.interval`: each formula of `contract.rows.FORMULAS`, in balls."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from samebits.contract.intervals.ball import EXACT, ROUNDED, Ball, Steps
from samebits.contract.intervals.interval import (
    Interval,
    around,
    evaluated,
    fp32_ends,
    known_order,
    made,
)
from samebits.contract.numerics import F32
from samebits.contract.operands import Operand

EXPONENTIAL = ("softmax", "log_softmax", "logsumexp")


class Rows(Protocol):
    """What is asked of a `RowContract`."""

    @property
    def op(self) -> str: ...

    def operands(
        self, x: Operand, weight: Operand | None, bias: Operand | None
    ) -> tuple[F32, F32 | None, F32 | None]: ...
    def evaluate(
        self,
        x: Operand,
        weight: Operand | None,
        bias: Operand | None,
        *,
        eps: float,
        correction: float,
        out_dtype: Any,
    ) -> Operand: ...


def interval(
    contract: Rows,
    x: Operand,
    weight: Operand | None,
    bias: Operand | None,
    out: str,
    *,
    eps: float,
    correction: float,
    order: str,
) -> Interval:
    """See `RowContract.interval`; `out` is the name of its `out_dtype`."""
    known_order(order, ("contract", "any"))
    v, w, b = contract.operands(x, weight, bias)

    def within(steps: Steps) -> Ball:
        return _formula(contract.op, steps, v, w, b, float(np.float32(eps)), correction)

    with np.errstate(all="ignore"):
        exact = within(EXACT)
        if order == "any":
            return made(*fp32_ends(*within(ROUNDED).ends), exact, out)
        y = contract.evaluate(x, weight, bias, eps=eps, correction=correction, out_dtype=out)
        return around(evaluated(y, out), exact)


def _formula(
    op: str, do: Steps, x: F32, w: F32 | None, b: F32 | None, eps: float, correction: float
) -> Ball:
    row, n = Ball.exactly(x), x.shape[-1]
    if op in EXPONENTIAL:
        return _exponential(op, do, x)
    if op == "norm":
        return do.sqrt(do.squares(row))
    if op == "sum":
        return do.sum(row)
    mean = do.over(do.sum(row), _number(n, x.shape[:-1]))
    if op == "mean":
        return mean
    d = row if op == "rms_norm" else do.sub(row, _column(mean))
    squares = do.squares(d)
    if op in ("var", "std"):
        v = do.over(squares, _number(max(0.0, n - correction), x.shape[:-1]))
        return v if op == "var" else do.sqrt(v)
    shifted = do.add(do.over(squares, _number(n, x.shape[:-1])), _number(eps, ()))
    r = do.div(_number(1, ()), do.sqrt(shifted))
    y = do.mul(d, _column(r))
    y = y if w is None else do.mul(y, Ball.exactly(w))
    return y if b is None else do.add(y, Ball.exactly(b))


def _exponential(op: str, do: Steps, x: F32) -> Ball:
    top = np.max(x, -1, initial=-np.inf)
    m = Ball.exactly(top)
    seen = x > -np.inf
    d = do.sub(Ball.exactly(np.where(seen, x, top[..., None])), _column(m))
    e = do.exp(d)
    e = Ball(np.where(seen, e.center, 0), np.where(seen, e.radius, 0))
    s = do.sum(e)
    if op == "softmax":
        y = do.over(e, _column(s))
        zero = ~seen & np.isfinite(top)[..., None]  # without a NaN or Inf, which are everywhere
        return Ball(np.where(zero, 0, y.center), np.where(zero, 0, y.radius))
    if op == "logsumexp":
        return do.add(do.log(s), m)
    y = do.sub(d, _column(do.log(s)))
    return Ball(np.where(seen, y.center, -np.inf), y.radius)


def _column(a: Ball) -> Ball:
    return Ball(a.center[..., None], a.radius[..., None])


def _number(value: float, shape: tuple[int, ...]) -> Ball:
    return Ball.exactly(np.full(shape, value))
