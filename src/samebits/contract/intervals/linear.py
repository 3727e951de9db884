"""`LinearContract.interval`: see `docs/intervals.md` for what is certified."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from samebits.contract import numerics as nx
from samebits.contract.arithmetic import Arithmetic
from samebits.contract.intervals import dot as bounds
from samebits.contract.intervals.ball import EXACT, ROUNDED, Ball
from samebits.contract.intervals.interval import Interval, known_order, made
from samebits.contract.numerics import F32, Array
from samebits.contract.operands import SCALE_BLOCK, Operand
from samebits.contract.tree import Leaf, Tree, reduce
from samebits.errors import ContractError

#: Elements of a weight that are widened to fp64 at a time.
_TOGETHER = 1 << 24


class Product(Protocol):
    """What is asked of a `LinearContract`."""

    @property
    def tree(self) -> Tree: ...
    @property
    def arithmetic(self) -> Arithmetic: ...
    @property
    def output(self) -> str: ...
    @property
    def scaling(self) -> str: ...
    @property
    def epilogue(self) -> tuple[str, ...]: ...

    def operands(
        self, x: Operand, weight: Operand, x_scale: Operand | None, w_scale: Operand | None
    ) -> tuple[F32, F32, F32 | None, F32 | None]: ...
    def sums(self, x: F32, w: F32, xs: F32 | None, ws: F32 | None, engine: str | None) -> F32: ...
    def bias_of(self, bias: Operand, y: F32) -> Array: ...
    def finish(self, y: F32, bias: Operand | None, alpha: float, beta: float) -> F32: ...


@dataclass(frozen=True)
class Sums:
    """Sums over k before the epilogue: the fp32 numbers that they may be, and the exact ones.

    With `biased` the bias is in them already.
    """

    first: F32
    last: F32
    exact: Ball
    biased: bool = False

    def shaped(self, *shape: int) -> Sums:
        """All arrays in another shape."""
        exact = Ball(self.exact.center.reshape(shape), self.exact.radius.reshape(shape))
        return Sums(self.first.reshape(shape), self.last.reshape(shape), exact, self.biased)


def interval(
    contract: Product,
    x: Operand,
    weight: Operand,
    bias: Operand | None,
    out: str,
    *,
    alpha: float,
    beta: float,
    x_scale: Operand | None,
    w_scale: Operand | None,
    order: str,
    replay: bool,
    engine: str | None,
) -> Interval:
    """See `LinearContract.interval`; `out` is the name of its `out_dtype`."""
    known_order(order)
    if out not in ("fp32", contract.output):
        raise ContractError(f"this contract rounds to {contract.output}, not to {out}")
    if order == "split" and (contract.scaling == "block" or "lanes" in str(contract.tree)):
        raise ContractError(f"order 'split' is of chains, and the contract has {contract.tree}")
    a, w, xs, ws = contract.operands(x, weight, x_scale, w_scale)
    rows = a if a.ndim > 1 else a[None]
    lead = np.broadcast_shapes(rows.shape[:-2], w.shape[:-2])
    shape = (*lead, rows.shape[-2], w.shape[-2])
    final = shape if a.ndim > 1 else (*lead, w.shape[-2])
    c = None
    if bias is not None and beta != 0:
        term = nx.mul32(contract.bias_of(bias, np.zeros(final, np.float32)), np.float32(beta))
        c = np.broadcast_to(np.broadcast_to(term, final).reshape(shape), shape)
    join = c if order == "any" and alpha == 1 and "bias" in contract.epilogue else None
    one = partial(_sums, contract, order=order, replay=replay, engine=engine)
    with np.errstate(all="ignore"):
        if w.ndim == 2:
            count = math.prod(shape[:-1])
            # Of no rows numpy cannot tell how long they are.
            flat = [
                None if t is None else t.reshape(count, t.size // count if count else t.shape[-1])
                for t in (rows, join, xs)
            ]
            assert flat[0] is not None
            sums = one(flat[0], w, flat[1], flat[2], ws).shaped(*shape)
        else:
            xb = np.broadcast_to(rows, lead + rows.shape[-2:])
            wb = np.broadcast_to(w, lead + w.shape[-2:])
            sums = _stacked(
                [
                    one(xb[i], wb[i], None if join is None else join[i], None, None)
                    for i in np.ndindex(lead)
                ],
                shape,
            )
        sums = sums.shaped(*final)
        bias = None if sums.biased else bias
        ends = [contract.finish(end, bias, alpha, beta) for end in (sums.first, sums.last)]
        exact = sums.exact
        if not sums.biased:
            if "alpha" in contract.epilogue and alpha != 1:
                exact = EXACT.mul(exact, Ball.exactly(np.float32(alpha)))
            if c is not None:
                exact = EXACT.add(exact, Ball.exactly(c.reshape(final)))
        low, high = exact.ends
        if "relu" in contract.epilogue:
            low, high = np.maximum(low, 0), np.maximum(high, 0)
        # Every step of an epilogue is monotone, so the ends stay the ends.
        return made(np.minimum(*ends), np.maximum(*ends), (low, high), out)


def _joined(parts: list[Sums]) -> Sums:
    """Sums side by side."""
    first, last = (np.hstack([getattr(p, name) for p in parts]) for name in ("first", "last"))
    exact = Ball(
        np.hstack([p.exact.center for p in parts]), np.hstack([p.exact.radius for p in parts])
    )
    return Sums(first, last, exact, parts[0].biased)


def _stacked(parts: list[Sums], shape: tuple[int, ...]) -> Sums:
    if not parts:
        nothing = np.zeros(shape, np.float32)
        return Sums(nothing, nothing, Ball.exactly(nothing))
    first, last = (np.stack([getattr(p, name) for p in parts]) for name in ("first", "last"))
    exact = Ball(
        np.stack([p.exact.center for p in parts]), np.stack([p.exact.radius for p in parts])
    )
    return Sums(first, last, exact, parts[0].biased).shaped(*shape)


def _sums(
    contract: Product,
    x: F32,
    w: F32,
    c: F32 | None,
    xs: F32 | None,
    ws: F32 | None,
    *,
    order: str,
    replay: bool,
    engine: str | None,
) -> Sums:
    """The sums of x [M, K] and w [N, K]; with order "any" also of c [M, N], a term like others."""
    columns = max(_TOGETHER // max(x.shape[1], 1) // SCALE_BLOCK, 1) * SCALE_BLOCK
    if len(w) > columns:  # a vocabulary of weights in fp64 is large
        parts = []
        for start in range(0, len(w), columns):
            at = slice(start, start + columns)
            some = ws
            if ws is not None:
                block = SCALE_BLOCK if contract.scaling == "block" else 1
                some = ws[start // block : -(-at.stop // block)]
            part = None if c is None else c[:, at]
            parts.append(
                _sums(contract, x, w[at], part, xs, some, order=order, replay=replay, engine=engine)
            )
        return _joined(parts)
    scales = None if xs is None or ws is None else _scales(contract, xs, ws, len(w))
    if order == "any":
        return _any(contract, x, w, c, scales)
    exact = _exact(x, w, scales)
    if order == "contract" and replay:
        y = contract.sums(x, w, xs, ws, engine)
        return Sums(y, y, exact)
    if order == "contract" and contract.scaling == "block":
        return Sums(*_block_scaled(contract, x, w, scales), exact)
    if order == "contract":
        first, last = bounds.along(x, w, contract.tree, contract.arithmetic)
    else:
        first, last = bounds.ends(*bounds.chains(x, w, contract.arithmetic, split=True))
    if scales is not None:
        factor = nx.mul32(*(s[0] for s in scales))
        scaled = nx.mul32(first, factor), nx.mul32(last, factor)
        first, last = np.minimum(*scaled), np.maximum(*scaled)
    return Sums(first, last, exact)


def _scales(contract: Product, xs: F32, ws: F32, n: int) -> tuple[F32, F32]:
    """Scales for each leaf of k: [J, M, 1] and [J, 1, N]; one leaf with scaling "row"."""
    each = np.repeat(ws, SCALE_BLOCK, 0)[:n] if contract.scaling == "block" else ws
    return xs.T[:, :, None], each.T[:, None, :]


def _leaves(k: int, scales: tuple[F32, F32] | None) -> list[slice]:
    """The stretches of k that have scales of their own."""
    if scales is None or len(scales[0]) == 1:
        return [slice(0, k)]
    return [slice(i, min(i + SCALE_BLOCK, k)) for i in range(0, k, SCALE_BLOCK)]


def _exact(x: F32, w: F32, scales: tuple[F32, F32] | None) -> Ball:
    total = Ball.exactly(np.zeros((len(x), len(w))))
    for i, at in enumerate(_leaves(x.shape[1], scales)):
        part = bounds.mass(x[:, at], w[:, at]).total
        if scales is not None:
            factor = EXACT.mul(Ball.exactly(scales[0][i]), Ball.exactly(scales[1][i]))
            part = EXACT.mul(part, factor)
        total = EXACT.add(total, part) if i else part
    return total


def _any(contract: Product, x: F32, w: F32, c: F32 | None, scales: tuple[F32, F32] | None) -> Sums:
    if scales is not None:
        parts = []
        for i, at in enumerate(_leaves(x.shape[1], scales)):
            part, error = _any_of(contract, x[:, at], w[:, at], None)
            factor = ROUNDED.mul(Ball.exactly(scales[0][i]), Ball.exactly(scales[1][i]))
            parts.append(ROUNDED.mul(part.wider(error.most), factor))
        terms = Ball(np.stack([p.center for p in parts]), np.stack([p.radius for p in parts]))
        total = ROUNDED.sum(terms, 0)
        none = np.zeros_like(total.center)
        first, last = bounds.ends(total, bounds.Lost(none, none))
        return Sums(first, last, _exact(x, w, scales))
    exact, error = _any_of(contract, x, w, c)
    return Sums(*bounds.ends(exact, error), exact, c is not None)


def _any_of(contract: Product, x: F32, w: F32, c: F32 | None) -> tuple[Ball, bounds.Lost]:
    block = contract.arithmetic.block

    def steps(_: Leaf, start: int, stop: int) -> int:
        return -(-(stop - start) // block)

    of = bounds.mass(x, w, contract.arithmetic, counted=block > 1)
    count = max(reduce(contract.tree, 0, x.shape[1], steps, int.__add__), -(-x.shape[1] // block))
    if c is not None:
        size = np.abs(c.astype(np.float64))
        of = replace(
            of, total=EXACT.add(of.total, Ball.exactly(c)),
            positive=of.positive + np.where(c > 0, size, 0),
            negative=of.negative + np.where(c < 0, size, 0),
            largest=np.maximum(of.largest, size), ups=of.ups + (c > 0), downs=of.downs + (c < 0),
            terms=of.terms + 1,
        )  # fmt: skip
        count += 1
    return of.total, bounds.any_order(of, contract.arithmetic, count)


def _block_scaled(
    contract: Product, x: F32, w: F32, scales: tuple[F32, F32] | None
) -> tuple[F32, F32]:
    """The ends of acc = fma(leaf, scale, acc), leaf by leaf."""
    assert scales is not None
    first = last = np.zeros((len(x), len(w)), np.float32)
    for i, at in enumerate(_leaves(x.shape[1], scales)):
        factor = nx.mul32(scales[0][i], scales[1][i])
        leaf = bounds.chain(x[:, at], w[:, at], contract.arithmetic)
        a, b = (nx.mul32(end, np.sign(factor)) for end in leaf)
        least, most = np.minimum(a, b), np.maximum(a, b)
        first = nx.fma32(least, np.abs(factor), first)
        last = nx.fma32(most, np.abs(factor), last)
    return first, last
