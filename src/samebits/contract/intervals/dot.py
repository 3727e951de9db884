"""Dot products: the exact result, and how far the orders of an arithmetic can stray from it.

The bounds rest on three facts.

1. A partial sum that a machine holds is the exact sum of some of the products, plus the errors made
   so far. The exact part lies between -N and P, the sums of the negative and positive products.
2. A fused multiply-add or an addition, rounded to nearest, loses at most 2^-24 of its result. A
   tensor core's block (`arithmetic.BlockFma`) cuts off: each of its terms loses less than one unit
   q = 2^(top - fraction) of the grid, its sum less than one unit in the last place, and always
   *toward zero*, so that a positive term can only make the result smaller.
3. Errors add up: sums pass an error on as it is.

With A the largest magnitude that a partial sum may have, the errors included, the sum of what the
steps lose is at most c A for a constant c of the tree; and A <= max(P, N) + c A gives A.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samebits.contract import numerics as nx
from samebits.contract.arithmetic import FP32, Arithmetic, BlockFma
from samebits.contract.intervals import blocks
from samebits.contract.intervals.ball import EXACT, Ball
from samebits.contract.intervals.interval import fp32_ends
from samebits.contract.numerics import F32, F64
from samebits.contract.tree import Lanes, Leaf, Tree, reduce

#: Half a unit in the last place of fp32, as a share of the number.
UNIT = 2.0**-24
#: What one fp32 step loses at most where it underflows, products flushed to zero included.
_TINY = 2.0**-126
#: Numbers below it do not overflow when they are rounded to fp32.
_HUGE = 2.0**128 * (1 - 2.0**-25)
#: Consecutive products whose partial sums are bounded together; leaves of "split" begin and end at
#: multiples of it (cuBLAS has been seen to cut 14336 into 4800, 4800 and 4736).
_CHUNK = 64
Range = tuple[F32, F32]


@dataclass(frozen=True)
class Mass:
    """Exact sums of products x[m, k] w[n, k], and what the bounds need to know of the products.

    Attributes:
        total: the exact sum, [M, N], with the radius of its computation in fp64.
        positive, negative: upper bounds of P and N.
        largest: an upper bound of every product's magnitude, and of what it counts as where a
            block sets its grid.
        ups, downs: how many products are positive, and negative.
        terms: how many products there are.
    """

    total: Ball
    positive: F64
    negative: F64
    largest: F64
    ups: F64
    downs: F64
    terms: int


def mass(
    x: F32 | F64, w: F32 | F64, arithmetic: Arithmetic | None = None, *, counted: bool = False
) -> Mass:
    """The `Mass` of x [M, K] and w [N, K]; products are exact in fp64, their sum nearly.

    In any order, an fp64 sum of K numbers is within K 2^-53 of the sum of their magnitudes
    (Jeannerod and Rump, "Improved error bounds for inner products", 2013).

    Args:
        arithmetic: of the steps that take the products; None where only the exact sum is wanted.
        counted: also count the signs (else every product counts as both).
    """
    terms = x.shape[1]
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    with np.errstate(all="ignore"):
        total = x64 @ w64.T
        magnitude = (np.abs(x64) @ np.abs(w64).T) * (1 + (terms + 4) * 2.0**-52)
        radius = magnitude * (terms + 1) * 2.0**-52
        positive = (magnitude + total) / 2 + radius
        negative = (magnitude - total) / 2 + radius
        a, b = np.abs(x64).max(1, initial=0)[:, None], np.abs(w64).max(1, initial=0)
        largest = np.minimum(a * b * (1 + 2.0**-50), np.maximum(positive, negative))
        if isinstance(arithmetic, BlockFma):
            # Subnormals set the grid as the smallest normal number would.
            p, q = _subnormal(x64, arithmetic)[:, None], _subnormal(w64, arithmetic)
            largest = np.maximum(largest, np.maximum(p * np.maximum(b, q), np.maximum(a, p) * q))
        if counted:
            signs = (np.sign(x) @ np.sign(w).T).astype(np.float64)
            nonzero = ((x != 0).astype(np.float32) @ (w != 0).astype(np.float32).T).astype(
                np.float64
            )
            ups, downs = (nonzero + signs) / 2, (nonzero - signs) / 2
        else:
            ups = downs = np.full_like(total, terms)
    return Mass(Ball(total, radius), positive, negative, largest, ups, downs, terms)


def _subnormal(x: F64, arithmetic: BlockFma) -> F64:
    """For each row the smallest normal number of the format if it has a subnormal one, or 0."""
    normal = 2.0**arithmetic.format.min_exponent
    has = np.logical_or.reduce((x != 0) & (np.abs(x) < normal), 1)
    return np.where(has, normal, 0.0)


@dataclass(frozen=True)
class Lost:
    """How far below (`down`) and above (`up`) the exact sum a computed one may lie: [M, N]."""

    down: F64
    up: F64

    def __add__(self, other: Lost) -> Lost:
        return Lost(self.down + other.down, self.up + other.up)

    @property
    def most(self) -> F64:
        """The larger of the two."""
        return np.maximum(self.down, self.up)


def lost(
    of: Mass,
    arithmetic: Arithmetic,
    *,
    high: F64,
    low: F64,
    steps: int,
    folds: int = 0,
    before: Lost | None = None,
) -> Lost:
    """What the steps of a sum lose together.

    Args:
        of: the products that the steps take.
        arithmetic: of the steps.
        high, low: no exact partial sum is above `high` or below -`low` (both >= 0).
        steps: multiply-adds or blocks.
        folds: fp32 additions of partial sums.
        before: errors that the partial sums carry already.

    Returns:
        The errors of these steps alone; Inf where the bound says nothing.
    """
    carried = 0.0 if before is None else before.most
    largest = np.maximum(np.maximum(high, low) + carried, of.largest)
    if not isinstance(arithmetic, BlockFma):
        rough = _solved((steps + folds) * UNIT, largest, (steps + folds) * _TINY)
        half = _power_below(largest + rough) * UNIT  # half a unit in the last place
        error = _finite((steps + folds) * (half + _TINY), largest + rough)
        return Lost(error, error)
    grid, digits = 2.0**-arithmetic.fraction, 2.0 ** (1 - arithmetic.significand)
    # A subnormal accumulator sets the grid as the smallest normal number would.
    lowest = max(arithmetic.floor, FP32.min_exponent)
    least = 2.0 ** (lowest - arithmetic.fraction) * (of.terms + steps)
    least += steps * 2.0 ** (FP32.min_exponent + 1 - arithmetic.significand)
    share = (of.terms + steps) * grid + steps * digits + folds * UNIT
    rough = _solved(share, largest, least)
    # Once more with what is known now: powers of two, and each sign by itself.
    top = _power_below(largest + rough)
    unit, fold = top * grid, folds * top * UNIT
    last_up = _power_below(high + carried + rough) * digits
    last_down = _power_below(low + carried + rough) * digits
    down = of.ups * unit + steps * (unit + last_up) + fold + least
    up = of.downs * unit + steps * (unit + last_down) + fold + least
    return Lost(_finite(down, largest + rough), _finite(up, largest + rough))


def _finite(error: F64, largest: F64) -> F64:
    """`error`, or Inf where a partial sum may overflow."""
    with np.errstate(invalid="ignore"):
        return np.where(largest < _HUGE, error * (1 + 2.0**-44), np.inf)


def _solved(share: float, largest: F64, extra: F64 | float) -> F64:
    """e = share * (largest + e) + extra, rounded up; Inf if `share` is no small number."""
    if share > 0.5:
        return np.full_like(largest, np.inf)
    found: F64 = (share * largest + extra) / (1 - share) * (1 + 2.0**-44)
    return found


def _power_below(x: F64) -> F64:
    """The largest power of two that is <= x > 0; 0 for 0, Inf for Inf."""
    with np.errstate(all="ignore"):
        powers: F64 = np.ldexp(1.0, np.frexp(x)[1] - 1)
    return np.where(np.isfinite(x), np.where(x > 0, powers, 0.0), np.inf)


def any_order(of: Mass, arithmetic: Arithmetic, steps: int) -> Lost:
    """The errors of every order: the products meet in any tree whatever.

    Args:
        of: all products.
        arithmetic: of the steps.
        steps: how many there are: one a product, or the tensor core's blocks, which are chained or
            added in fp32.
    """
    cuts = isinstance(arithmetic, BlockFma)
    folds = max(steps - 1, 0) if cuts else 0
    error = lost(of, arithmetic, high=of.positive, low=of.negative, steps=steps, folds=folds)
    if cuts:
        return error
    # A product may be rounded by itself before it is added.
    own = (of.positive + of.negative) * UNIT * (1 + 2.0**-20) + of.terms * _TINY
    return error + Lost(own, own)


def chains(x: F32, w: F32, arithmetic: Arithmetic, *, split: bool = False) -> tuple[Ball, Lost]:
    """The errors of a chain over ascending k, from the partial sums that it really passes through.

    Args:
        x: [M, K].
        w: [N, K].
        split: of every split of k into contiguous leaves with edges on multiples of 64, each a
            chain, folded so that neighbours meet (in ascending order, in pairs, ...).
    """
    counted = isinstance(arithmetic, BlockFma)
    zero = np.zeros((len(x), len(w)))
    error, prefix = Lost(zero, zero), Ball(zero, zero)
    top, bottom = zero, zero  # of the exact prefix sums up to here
    largest = zero
    for start in range(0, x.shape[1], _CHUNK):
        at = slice(start, min(start + _CHUNK, x.shape[1]))
        here = mass(x[:, at], w[:, at], arithmetic, counted=counted)
        above = prefix.center + prefix.radius + here.positive
        below = prefix.center - prefix.radius - here.negative
        # A leaf that began at an earlier prefix holds the difference of two prefixes.
        high = np.maximum(above - np.minimum(bottom, below) if split else above, 0)
        low = np.maximum(np.maximum(top, above) - below if split else -below, 0)
        steps = -(-(at.stop - at.start) // arithmetic.block)
        error += lost(here, arithmetic, high=high, low=low, steps=steps, before=error)
        top, bottom = np.maximum(top, above), np.minimum(bottom, below)
        largest = np.maximum(largest, np.maximum(high, low))
        prefix = EXACT.add(prefix, here.total)
    folds = -(-x.shape[1] // _CHUNK) - 1
    if split and folds > 0:
        most = _solved(folds * UNIT, np.maximum(largest, top - bottom) + error.most, folds * _TINY)
        error += Lost(most, most)
    return prefix, error


def ends(total: Ball, error: Lost) -> Range:
    """The fp32 numbers that a computed sum may be."""
    low = np.nextafter(total.center - total.radius - error.down, -np.inf)
    high = np.nextafter(total.center + total.radius + error.up, np.inf)
    with np.errstate(all="ignore"):
        return fp32_ends(
            np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
        )


def chain(x: F32, w: F32, arithmetic: Arithmetic) -> Range:
    """The fp32 numbers that a chain over ascending k may give, without evaluating it."""
    if isinstance(arithmetic, BlockFma):
        return blocks.chain(x, w, arithmetic)
    return ends(*chains(x, w, arithmetic))


def along(x: F32, w: F32, tree: Tree, arithmetic: Arithmetic) -> Range:
    """The fp32 numbers that a contract's accumulator may be, without evaluating it: [M, N] each."""

    def leaf(kind: Leaf, start: int, stop: int) -> Range:
        a, b = x[:, start:stop], w[:, start:stop]
        if not isinstance(kind, Lanes):
            return chain(a, b, arithmetic)
        width = kind.width
        lanes = [chain(a[:, i::width], b[:, i::width], arithmetic) for i in range(width)]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [_added(lanes[i], lanes[i + half]) for i in range(half)]
        return lanes[0]

    return reduce(tree, 0, x.shape[1], leaf, _added)


def _added(a: Range, b: Range) -> Range:
    """Addition is monotone, also when it is rounded."""
    return nx.add32(a[0], b[0]), nx.add32(a[1], b[1])
