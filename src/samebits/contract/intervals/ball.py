"""Numbers with a radius: what a formula may come to, when every step may be off by a little.

A `Ball` holds every real number within `radius` of `center`. Centers and radii are fp64; each
operation widens the radius by what fp64 itself may have lost, so that a ball is never too small.

One formula serves two purposes. Computed with `EXACT` steps its ball holds the exact real result;
with `ROUNDED` steps it holds every result that fp32 steps can give, in whatever order a sum is
taken (`Steps` says what a step may lose).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samebits.contract.numerics import F64, Array

#: Relative error of one fp64 operation (twice the unit roundoff), and of fp64 exp and log.
_FP64, _FP64_FUNCTION = 2.0**-52, 2.0**-49
#: What the few roundings in the computation of a radius can lose of it.
_SLACK = 1 + 2.0**-44
#: Added to every radius that is not zero: no underflow of a radius goes unseen.
_LEAST = 2.0**-1060
#: Numbers below it are finite in fp32, however they are rounded.
_OVERFLOW = 2.0**128 * (1 - 2.0**-24)


@dataclass(frozen=True)
class Ball:
    """All real numbers within `radius` of `center`: two fp64 arrays of one shape.

    A radius that is infinite or NaN says that nothing is known.
    """

    center: F64
    radius: F64

    @classmethod
    def exactly(cls, x: Array) -> Ball:
        """The very numbers `x` (fp32 or fp64)."""
        c = np.asarray(x, np.float64)
        return cls(c, np.zeros_like(c))

    @property
    def largest(self) -> F64:
        """An upper bound of the magnitude."""
        bound: F64 = (np.abs(self.center) + self.radius) * _SLACK
        return bound

    @property
    def ends(self) -> tuple[F64, F64]:
        """Lower and upper end, rounded outward; -Inf and Inf where nothing is known."""
        low = np.nextafter(self.center - self.radius, -np.inf)
        high = np.nextafter(self.center + self.radius, np.inf)
        exact = self.radius == 0
        low, high = np.where(exact, self.center, low), np.where(exact, self.center, high)
        known = np.isfinite(low) & np.isfinite(high)
        return np.where(known, low, -np.inf), np.where(known, high, np.inf)

    def wider(self, by: Array | float) -> Ball:
        """The same center, a radius larger by `by` >= 0."""
        return Ball(self.center, (self.radius + by) * _SLACK)


def ball(center: F64, radius: Array | float) -> Ball:
    """A ball whose center was computed by one fp64 operation."""
    r = (radius + _FP64 * np.abs(center)) * _SLACK + _LEAST
    return Ball(np.asarray(center, np.float64), np.asarray(r, np.float64))


@dataclass(frozen=True)
class Steps:
    """What one step of a formula may lose.

    Attributes:
        unit: relative error of an operation: 0, or 2^-24 for fp32 rounded to nearest.
        tiny: absolute error of one that underflows.
        function: relative error of exp and log: 2 units in the last place, for fp32.
        argument: relative error of the argument that exp reduces (a product with log2 e).
        flush: exp may give 0 below this.
    """

    unit: float = 0.0
    tiny: float = 0.0
    function: float = 0.0
    argument: float = 0.0
    flush: float = 0.0

    def _rounded(self, center: F64, radius: Array | float) -> Ball:
        exact = ball(center, radius)
        if not self.unit:
            return exact
        held = exact.wider(self.unit * exact.largest + self.tiny)
        # Nothing is known of what follows on an overflow, which may be a 0 or a NaN again.
        return Ball(held.center, np.where(held.largest < _OVERFLOW, held.radius, np.inf))

    def add(self, a: Ball, b: Ball) -> Ball:
        """a + b."""
        return self._rounded(a.center + b.center, a.radius + b.radius)

    def sub(self, a: Ball, b: Ball) -> Ball:
        """a - b."""
        return self._rounded(a.center - b.center, a.radius + b.radius)

    def mul(self, a: Ball, b: Ball) -> Ball:
        """a * b."""
        r = np.abs(a.center) * b.radius + a.radius * b.largest
        return self._rounded(a.center * b.center, r)

    def div(self, a: Ball, b: Ball) -> Ball:
        """a / b; nothing is known where b may be 0."""
        least = np.abs(b.center) - b.radius * _SLACK
        c = a.center / b.center
        r = (a.radius + np.abs(c) * b.radius * _SLACK) / least
        return self._rounded(c, np.where(least > 0, r, np.inf))

    def over(self, a: Ball, b: Ball) -> Ball:
        """a / b, or a times the rounded 1 / b."""
        return self.mul(a, self.div(Ball.exactly(np.ones_like(b.center)), b))

    def sqrt(self, a: Ball) -> Ball:
        """The square root of a ball of numbers that are not negative."""
        c = np.sqrt(np.maximum(a.center, 0))
        # |sqrt(x) - sqrt(c)| is at most r / sqrt(c), and at most sqrt(r).
        r = np.minimum(np.sqrt(a.radius), a.radius / np.where(c > 0, c, 1e-300))
        return self._rounded(c, r)

    def exp(self, a: Ball) -> Ball:
        """e^a."""
        argument = (a.radius + self.argument * np.abs(a.center)) * _SLACK
        c = np.exp(a.center)
        lost = np.expm1(argument) * (1 + 2 * _FP64_FUNCTION) + _FP64_FUNCTION + self.function
        return ball(c, c * lost * (1 + 2.0**-20) + self.flush)

    def log(self, a: Ball) -> Ball:
        """The natural logarithm of a ball of positive numbers."""
        share = a.radius / a.center * _SLACK
        c = np.log(a.center)
        r = np.where(share < 1, -np.log1p(-np.minimum(share, 0.5)), np.inf)
        r = np.where(share > 0.5, np.inf, r)
        return ball(c, r + np.abs(c) * (self.function + _FP64_FUNCTION))

    def sum(self, terms: Ball, axis: int = -1) -> Ball:
        """The sum of `terms` along an axis, in any order."""
        n = terms.center.shape[axis]
        total = terms.center.sum(axis)
        mass = np.abs(terms.center).sum(axis)
        r = terms.radius.sum(axis) + n * _FP64 * mass
        return self.summed(ball(total, r), mass, n)

    def summed(self, total: Ball, mass: F64, n: int) -> Ball:
        """An exact sum of `n` terms, whose magnitudes sum to `mass`, as computed in any order.

        A partial sum is the sum of some of the terms, so it lies between the sum of the negative
        and that of the positive ones; each of n - 1 additions loses at most `unit` of it.
        """
        if not self.unit or n < 2:
            return total
        largest = ((mass * (1 + n * _FP64) + np.abs(total.center)) / 2 + total.radius) * _SLACK
        share = (n - 1) * self.unit
        lost = (share * largest + n * self.tiny) / (1 - share) if share < 0.5 else np.inf * largest
        lost = np.where(largest + lost < _OVERFLOW, lost, np.inf)
        return total.wider(lost)

    def squares(self, a: Ball) -> Ball:
        """The sum of a^2 along the last axis, in any order."""
        return self.sum(self.mul(a, a))


EXACT = Steps()
#: fp32, rounded to nearest; subnormals may be flushed to zero.
ROUNDED = Steps(
    unit=2.0**-24, tiny=2.0**-126, function=2.0**-22, argument=2.0**-23, flush=2.0**-125
)
