"""Sums in bins: the same bits in any order, with a bound of their error.

Demmel and Nguyen ("Fast reproducible floating-point summation", 2013) and Ahrens, Demmel and Nguyen
("Algorithms for efficient reproducible floating point summation", TOMS 2020), with the augmented
addition that Riedy and Demmel proposed for it. The exponents are cut into bins of W bits, the same
for all rows. The largest magnitude m picks the highest bin; every element leaves in it the multiple
of the bin's unit that is nearest (ties down: that is what an addition to a large positive number
with ties toward zero does, whatever the number), the rest goes to the bin below, three bins in all.
Bins are added without rounding, and rounded together, once.

The sum is not exact: what is left below the third bin, at most half its unit for each element, is
lost. `error_bound` says how much that is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from samebits.contract.exact.augmented import Floats
from samebits.errors import DTypeError

#: Bits of a bin.
WIDTHS = {np.dtype(np.float32): 13, np.dtype(np.float64): 40}
BINS = 3


def width_of(dtype: Any) -> int:
    """Bits of a bin.

    Raises:
        DTypeError: not float32 or float64.
    """
    if dtype not in WIDTHS:
        raise DTypeError(f"binned_sum takes float32 and float64, not {dtype}")
    return WIDTHS[dtype]


def bin_of(m: float, width: int) -> int:
    """The highest bin of elements up to m: 1 < m / 2^(width * bin) <= 2^width."""
    fraction, exponent = math.frexp(m)
    ceiling = exponent - 1 if fraction == 0.5 else exponent
    return -(-ceiling // width) - 1


def binned_sum(x: Floats) -> Floats:
    """The sum along the last axis, in integers: the definition.

    Args:
        x: [..., n] float32 or float64.

    Returns:
        [...], the dtype of x. NaN, or Inf of both signs: NaN; else Inf among them: that Inf.

    Raises:
        DTypeError: another dtype.
    """
    width = width_of(x.dtype)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    out = np.array([_row(row, width) for row in rows], x.dtype).reshape(x.shape[:-1])
    return np.where(np.isnan(out), np.array(np.nan, x.dtype), out)


def _row(x: Floats, width: int) -> float:
    if not np.isfinite(x).all():
        with np.errstate(all="ignore"):
            return float(np.where(np.isfinite(x), 0, x).astype(np.float64).sum())
    m = float(np.abs(x).max(initial=0))
    if not m:
        return 0.0
    unit = width * (bin_of(m, width) - BINS + 1)  # exponent of the lowest bin's unit
    total = sum(_slices(float(v), width, unit) for v in x)
    return _nearest(total, unit, x.dtype)


def _slices(v: float, width: int, unit: int) -> int:
    """What v leaves in the bins, in units of the lowest."""
    significand, exponent = math.frexp(v)
    rest, below = int(math.ldexp(significand, 53)), exponent - 53
    kept = 0
    for b in reversed(range(BINS)):
        step = unit + b * width - below  # the bin's unit is 2^step of rest's
        if step <= 0:  # it divides what is left
            return kept + (rest << below - unit)
        # Nearest, and down at a tie: the ceiling of rest / 2^step - 1/2.
        nearest = -((1 << step - 1) - rest >> step)
        kept += nearest << b * width
        rest -= nearest << step
    return kept


def _nearest(value: int, unit: int, dtype: Any) -> float:
    """value * 2^unit rounded to nearest even."""
    digits, low = (24, -126) if dtype == np.float32 else (53, -1022)
    size, sign = abs(value), -1 if value < 0 else 1
    last = max(size.bit_length() - 1 + unit, low) - digits + 1
    drop = last - unit
    if drop > 0:
        kept, half = size >> drop, 1 << drop - 1
        rest = size - (kept << drop)
        size, unit = kept + (rest > half or (rest == half and kept & 1)), last
    if size.bit_length() + unit > 2 - low:
        return sign * math.inf
    return sign * math.ldexp(size, unit) if value else 0.0


def error_bound(n: int, largest: float, total: float, dtype: Any) -> float:
    """How far a binned sum may be from the exact one.

    Args:
        n: elements.
        largest: their largest magnitude.
        total: the binned sum.
        dtype: float32 or float64.

    Returns:
        ``n * 2^(-2W - 1) * largest``, with W = 13 or 40, for what the bins lose, and half a unit in
        the last place of the result.

    Raises:
        DTypeError: another dtype.
    """
    width = width_of(dtype)
    place = float(np.spacing(np.abs(np.array(total, dtype)))) if math.isfinite(total) else math.inf
    return n * math.ldexp(largest, -(BINS - 1) * width - 1) + place / 2
