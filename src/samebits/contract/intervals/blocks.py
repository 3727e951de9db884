"""Chains of a tensor core's blocks: between which numbers the accumulator lies, block by block.

A block (`arithmetic.BlockFma`) gives D = Z(z(C) + sum_i z(p_i)): z cuts a term off toward zero on a
grid of step q, and Z the sum after `significand` bits. Three facts give an interval for D from one
for C, without following single products:

1. **Z is monotone**, so it can be applied to the ends: what Z loses is in both of them, and makes
   the interval no wider than one unit in the last place. This is why the bias of truncation, which
   grows with every block, does not widen it.
2. q is 2^-fraction times the largest exponent, which is at most that of the larger end of C, and of
   the largest factors of the products.
3. z moves a positive term down by less than q, a negative one up, and leaves alone what is a
   multiple of q. A product with exponent e is a multiple of 2^(e - 2f) and below 2^(e + 2), f being
   the operands' fraction bits; so one that loses something is below t = 2^(2f + 1) q. Of those
   there are at most sum_i min(1, (t / |p_i|)^(1/2)), and |p|^(-1/2) is a product of a function of x
   and one of w: the number comes from a matrix product. An accumulator loses nothing if its last
   place is at least q.

All of it is computed in fp64 and rounded outward.
"""

from __future__ import annotations

import numpy as np

from samebits.contract.arithmetic import FP32, BlockFma
from samebits.contract.numerics import F32, F64

_EXPONENT = np.uint64(0x7FF << 52)
#: The smallest normal number, whose exponent subnormal accumulators have too.
_NORMAL = 2.0**FP32.min_exponent
#: What the few roundings in the computation of a radius can lose of it.
_SLACK = 1 + 2.0**-50


def chain(x: F32, w: F32, arithmetic: BlockFma) -> tuple[F32, F32]:
    """The smallest and the largest number that a chain of blocks over ascending k can give.

    Args:
        x: [M, K] values of the input format.
        w: [N, K].

    Returns:
        Two arrays [M, N]; -Inf and Inf where an operand is not finite or a sum may overflow.
    """
    low = high = np.zeros((len(x), len(w)))
    with np.errstate(all="ignore"):
        for start in range(0, x.shape[1], arithmetic.block):
            at = slice(start, start + arithmetic.block)
            low, high = _block(x[:, at], w[:, at], low, high, arithmetic)
    known = np.isfinite(low) & np.isfinite(high)
    first, last = np.where(known, low, -np.inf), np.where(known, high, np.inf)
    return first.astype(np.float32), last.astype(np.float32)


def _block(x: F32, w: F32, low: F64, high: F64, arithmetic: BlockFma) -> tuple[F64, F64]:
    fmt, significand = arithmetic.format, arithmetic.significand
    a, b = x.astype(np.float64), w.astype(np.float64)
    total = a @ b.T
    of_x, of_w = _extremes(a, fmt.min_exponent), _extremes(b, fmt.min_exponent)
    largest = of_x[0][:, None] * of_w[0]  # 2^exponent
    mass = 4 * len(a.T) * largest  # at least the sum of all magnitudes
    last_place = of_x[1][:, None] * of_w[1] * 2.0 ** (-2 * fmt.fraction)
    # Sums of multiples of one number are exact if 53 bits hold them; then no slack is needed.
    exact = mass < 2.0**53 * last_place
    radius, slack = np.where(exact, 0, mass * (len(a.T) * 2.0**-52)), np.where(exact, 1, _SLACK)

    reach = np.maximum(np.abs(low), np.abs(high))
    lowest = max(_NORMAL, 2.0**arithmetic.floor)
    top = np.maximum(np.maximum(_power(reach), largest), lowest)
    q = top * 2.0**-arithmetic.fraction
    ups, downs = (
        np.where(last_place >= q, 0, count)
        for count in _losing(a, b, q * 2.0 ** (2 * fmt.fraction + 1))
    )
    least = np.maximum(np.maximum(low, -high), 0)  # no accumulator is closer to 0
    cut = np.where(_power(least) * 2.0 ** (1 - significand) >= q, 0, q)
    down = (ups * q + np.where(high > 0, cut, 0) + radius) * slack
    up = (downs * q + np.where(low < 0, cut, 0) + radius) * slack
    below = _added(low, _added(total, -down, -np.inf), -np.inf)
    above = _added(high, _added(total, up, np.inf), np.inf)
    return _cut(below, significand), _cut(above, significand)


def _extremes(x: F64, min_exponent: int) -> tuple[F64, F64]:
    """The largest and smallest power of two of a row's numbers that are not 0: 2^exponent, [M]."""
    powers = np.where(x == 0, 0, np.maximum(_power(x), 2.0**min_exponent))
    return powers.max(1), np.where(x == 0, np.inf, powers).min(1)


def _losing(a: F64, b: F64, below: F64) -> tuple[F64, F64]:
    """At most how many positive and how many negative products are smaller than `below`."""
    sign_a, sign_b = np.sign(a), np.sign(b)
    root_a, root_b = (np.where(x == 0, 0, np.abs(x) ** -0.5) for x in (a, b))
    share = np.sqrt(below) * (1 + 2.0**-40)
    counts = np.abs(sign_a) @ np.abs(sign_b).T, sign_a @ sign_b.T
    moments = root_a @ root_b.T, (root_a * sign_a) @ (root_b * sign_b).T
    found = [
        np.floor(np.minimum((counts[0] + s * counts[1]) / 2, _half(*moments, s) * share))
        for s in (1, -1)
    ]
    return found[0], found[1]


def _half(total: F64, signed: F64, sign: int) -> F64:
    """The part of `total` whose terms have a sign, rounded up."""
    return (total + sign * signed) / 2 + total * 2.0**-44


def _power(x: F64) -> F64:
    """The largest power of two that is not above |x|, for normal numbers of fp64; 0 for 0."""
    power: F64 = (np.ascontiguousarray(x).view(np.uint64) & _EXPONENT).view(np.float64)
    return power


def _added(a: F64, b: F64, toward: float) -> F64:
    """a + b, rounded in a direction: Knuth's TwoSum tells whether the rounded sum is exact."""
    s = a + b
    t = s - a
    error = (a - (s - t)) + (b - t)
    return np.where(error < 0 if toward < 0 else error > 0, np.nextafter(s, toward), s)


def _cut(x: F64, significand: int) -> F64:
    """x truncated toward zero after some bits, as a block's sum is; NaN from 2^128 on."""
    mask = np.uint64((1 << 64) - (1 << (53 - significand)))
    cut = (np.ascontiguousarray(x).view(np.uint64) & mask).view(np.float64)
    step = _NORMAL * 2.0 ** (1 - significand)
    cut = np.where(np.abs(x) < _NORMAL, np.trunc(x / step) * step, cut)
    return np.where(np.abs(cut) < 2.0**128, cut, np.nan)
