"""IEEE 754-2019, 9.5: augmented operations in integers, the definition.

Each gives two numbers: the result rounded to nearest with **ties toward zero**, and what the
rounding left over, which is exact (of a product it is rounded in the same way where it underflows).
Ties toward zero make the result independent of the last bit of an operand, which is what sums in
bins need (`binned`); no hardware has this rounding yet.

- An error of zero has the sign of the result.
- Overflow: both are that Inf. Half a unit beyond the largest number is a tie and stays finite.
- An Inf operand: both are Inf; NaN, Inf - Inf and Inf * 0: both are the canonical NaN.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from samebits.errors import DTypeError, ShapeError

AugmentedOp = Literal["addition", "subtraction", "multiplication"]

#: significant bits and smallest normal exponent
_FORMATS = {np.dtype(np.float32): (24, -126), np.dtype(np.float64): (53, -1022)}
Floats = npt.NDArray[np.floating[Any]]


def augmented(op: AugmentedOp, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Result and error for every pair of elements.

    Args:
        op: what to do.
        x, y: float32 or float64 arrays of one dtype and shape.

    Raises:
        DTypeError, ShapeError: other operands.
    """
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype not in _FORMATS or x.dtype != y.dtype:
        raise DTypeError(
            f"augmented_{op}: {x.dtype} and {y.dtype}: use float32 or float64 for both"
        )
    if x.shape != y.shape:
        raise ShapeError(f"augmented_{op}: shapes {x.shape} and {y.shape} differ")
    digits, low = _FORMATS[x.dtype]
    pairs = [
        _pair(op, float(a), float(b), digits, low) for a, b in zip(x.flat, y.flat, strict=True)
    ]
    both = np.array(pairs, x.dtype).reshape(*x.shape, 2)
    nan = np.array(np.nan, x.dtype)
    both = np.where(np.isnan(both), nan, both)
    return both[..., 0], both[..., 1]


def _pair(op: AugmentedOp, x: float, y: float, digits: int, low: int) -> tuple[float, float]:
    y = -y if op == "subtraction" else y
    if not (math.isfinite(x) and math.isfinite(y)):
        with np.errstate(all="ignore"):
            plain = float(np.float64(x) * y if op == "multiplication" else np.float64(x) + y)
        return plain, plain
    (a, ea), (b, eb) = _parts(x), _parts(y)
    if op == "multiplication":
        value, unit = a * b, ea + eb
        zero = math.copysign(0.0, math.copysign(1, x) * math.copysign(1, y))
    else:
        unit = min(ea, eb)
        value = (a << ea - unit) + (b << eb - unit)
        zero = x + y
    if not value:
        return zero, zero
    result, left = _ties_to_zero(value, unit, digits, low)
    if math.isinf(result):
        return result, result
    error, _ = _ties_to_zero(left, unit, digits, low)
    return result, error if left else math.copysign(0.0, result)


def _parts(x: float) -> tuple[int, int]:
    """x = significand * 2^exponent."""
    significand, exponent = math.frexp(x)
    return int(math.ldexp(significand, 53)), exponent - 53


def _ties_to_zero(value: int, unit: int, digits: int, low: int) -> tuple[float, int]:
    """value * 2^unit rounded, and what is left in the same unit."""
    size = abs(value)
    last = max(size.bit_length() - 1 + unit, low) - digits + 1
    drop = last - unit
    if drop <= 0:
        kept, left, last = size, 0, unit
    else:
        kept, half = size >> drop, 1 << drop - 1
        kept += size - (kept << drop) > half
        left = size - (kept << drop)
    sign = -1 if value < 0 else 1
    if kept.bit_length() + last > 2 - low:
        return sign * math.inf, 0
    return sign * math.ldexp(kept, last), sign * left
