"""Exact sums as Python integers, and their one rounding: the definition of "exact".

Every finite fp32 number (and so every bf16 and fp16 number) is an integer times 2^-149, and a
product of two is an integer times 2^-298. Sums of such integers have no rounding and therefore no
order: what is computed here is the value that a perfect machine would compute, rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from samebits.contract.arithmetic import FORMATS, Format
from samebits.contract.numerics import CANONICAL_NAN, F32, Array

#: Integers of any size, one an element.
Integers = npt.NDArray[np.object_]

#: 2^-UNIT is fp32's smallest positive number: every finite fp32 number is a multiple of it.
UNIT = 149


def integers(x: Array) -> Integers:
    """Finite fp32 values as Python integers in units of 2^-149; Inf and NaN give 0."""
    v = np.where(np.isfinite(x), x, 0).astype(np.float64)
    significand, exponent = np.frexp(v)
    whole = np.ldexp(significand, 24).astype(np.int64)  # exact: fp32 has 24 significant bits
    shift = exponent.astype(np.int64) - 24 + UNIT  # negative for subnormals: their last bits are 0
    whole = np.where(shift < 0, whole >> np.minimum(np.maximum(-shift, 0), 63), whole)
    result: Integers = whole.astype(object) << np.maximum(shift, 0).astype(object)
    return result


def rounded(value: int, exponent: int, dtype: str) -> float:
    """value * 2^exponent rounded to nearest even in a storage type.

    Gradual underflow; what rounds beyond the largest number is Inf; zero is +0.

    Args:
        value: any integer.
        exponent: of its unit.
        dtype: "fp32", "bf16" or "fp16".
    """
    fmt: Format = FORMATS[dtype]
    magnitude, sign = abs(value), -1 if value < 0 else 1
    if not magnitude:
        return 0.0
    top = magnitude.bit_length() - 1 + exponent
    last = max(top, fmt.min_exponent) - fmt.fraction  # exponent of the result's last place
    kept, dropped = magnitude, last - exponent
    if dropped > 0:
        kept = magnitude >> dropped
        rest, half = magnitude - (kept << dropped), 1 << dropped - 1
        kept += rest > half or (rest == half and kept & 1)
    else:
        last = exponent
    if kept.bit_length() + last > largest_exponent(fmt) + 1:
        return sign * math.inf
    return sign * math.ldexp(kept, last)


def largest_exponent(fmt: Format) -> int:
    """Exponent of the largest finite numbers of an IEEE storage type."""
    return 1 - fmt.min_exponent


def exact_dot(x: F32, w: F32, c: Array | None, dtype: str) -> F32:
    """x @ w.T + c: the exact value, rounded once to `dtype` and held as fp32.

    Args:
        x: [M, K] fp32 values.
        w: [N, K].
        c: one more term of every sum; fp32, broadcasts to [M, N]; or None.
        dtype: "fp32", "bf16" or "fp16".

    Returns:
        [M, N]. A NaN among the terms (a factor is NaN, or Inf * 0), or Inf with both signs: the
        canonical NaN. Else Inf among the terms: that Inf. A sum of zero is +0, whatever the signs
        of its terms.
    """
    total: Any = integers(x) @ integers(w).T if x.shape[1] else np.zeros((len(x), len(w)), object)
    with np.errstate(all="ignore"):
        # No finite product or sum overflows fp64: not finite means an Inf or NaN among the terms.
        plain = x.astype(np.float64) @ w.T.astype(np.float64)
        if c is not None:
            c = np.broadcast_to(c, total.shape)
            total = total + (integers(c) << UNIT)
            plain = plain + c
    return _finish(total, -2 * UNIT, plain, dtype)


def exact_sum(x: F32, dtype: str = "fp32", squares: bool = False) -> F32:
    """The exact sum (of squares) along the last axis, rounded once to `dtype`, held as fp32.

    Inf, NaN and zero as in `exact_dot`.
    """
    terms = integers(x)
    total = (terms * terms if squares else terms).sum(-1) + np.zeros(x.shape[:-1], object)
    with np.errstate(all="ignore"):
        plain = (x.astype(np.float64) ** (2 if squares else 1)).sum(-1)
    return _finish(np.asarray(total, object), -UNIT * (1 + squares), plain, dtype)


def _finish(total: Integers, exponent: int, plain: Array, dtype: str) -> F32:
    """Integers in units of 2^exponent, rounded; `plain` is not finite where the result is not."""
    y = np.array([rounded(v, exponent, dtype) for v in total.reshape(-1)], np.float32)
    with np.errstate(all="ignore"):
        special = plain.astype(np.float32)
    y = np.where(np.isfinite(plain), y.reshape(total.shape), special)
    return np.where(np.isnan(y), CANONICAL_NAN, y)
