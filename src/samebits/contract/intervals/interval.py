"""The interval of a result: between which numbers it must lie, and between which exactness lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from samebits.contract import numerics as nx
from samebits.contract.intervals.ball import Ball
from samebits.contract.numerics import F32, F64, Array
from samebits.contract.operands import Operand, is_tensor, values
from samebits.errors import ContractError, DTypeError, ShapeError

#: Which orders of summation an interval covers; `docs/intervals.md` defines them.
Order = Literal["contract", "split", "any"]


@dataclass(frozen=True)
class Interval:
    """Bounds of every element of a result. All arrays are fp64 and of the result's shape.

    Attributes:
        first, last: the smallest and the largest number that the operation can give in the orders
            that were asked for, after all roundings. Where they are equal, every order gives the
            same number.
        exact_low, exact_high: the exact real result lies between these.

    -Inf and Inf stand where nothing is certified: an operand or some order's partial sum is not
    finite.
    """

    first: F64
    last: F64
    exact_low: F64
    exact_high: F64

    @property
    def low(self) -> F64:
        """Below every result and below the exact one."""
        return np.minimum(self.first, self.exact_low)

    @property
    def high(self) -> F64:
        """Above every result and above the exact one."""
        return np.maximum(self.last, self.exact_high)

    @property
    def width(self) -> F64:
        """high - low."""
        with np.errstate(invalid="ignore"):
            return self.high - self.low

    @property
    def settled(self) -> npt.NDArray[np.bool_]:
        """Where all orders give one and the same number."""
        return np.equal(self.first, self.last)

    def contains(self, result: Operand) -> npt.NDArray[np.bool_]:
        """Where `result` is a number that one of the orders can give.

        A NaN is one only where nothing is certified: if a partial sum overflows.

        Args:
            result: fp32, bf16 or fp16 tensor (on a CPU), or an array of its values; of the
                interval's shape.

        Raises:
            ShapeError: it has another shape.
        """
        y = result_values(result)
        if y.shape != self.first.shape:
            raise ShapeError(f"a result {y.shape} against an interval {self.first.shape}")
        unknown = np.isneginf(self.first) & np.isposinf(self.last)
        return ((self.first <= y) & (y <= self.last)) | unknown

    def __getitem__(self, at: Any) -> Interval:
        return Interval(self.first[at], self.last[at], self.exact_low[at], self.exact_high[at])


def result_values(result: Operand) -> F64:
    """The fp64 values of a result: a tensor of any floating type, or an array of numbers.

    Raises:
        DTypeError: it is on another device.
    """
    if is_tensor(result):
        if result.device.type != "cpu":
            raise DTypeError(f"a result is on {result.device}: intervals take CPU tensors")
        return np.asarray(result.detach().double().numpy())
    return np.asarray(result, np.float64)


def known_order(order: str, allowed: tuple[str, ...] = ("contract", "split", "any")) -> None:
    """Raises ContractError unless `order` is one of `allowed`."""
    if order not in allowed:
        raise ContractError(f"order {order!r}: use one of {', '.join(map(repr, allowed))}")


def fp32_ends(low: F64, high: F64) -> tuple[F32, F32]:
    """The fp32 numbers between two bounds: the smallest and the largest.

    What is computed in fp32 is such a number, so rounding *inward* is right here. Bounds past the
    largest finite fp32 number give -Inf and Inf.
    """
    with np.errstate(all="ignore"):
        first, last = low.astype(np.float32), high.astype(np.float32)
        first = np.where(first < low, np.nextafter(first, np.float32(np.inf)), first)
        last = np.where(last > high, np.nextafter(last, np.float32(-np.inf)), last)
        over = ~((np.abs(low) < 2.0**128) & (np.abs(high) < 2.0**128))
    return np.where(over, -np.inf, first).astype(np.float32), np.where(over, np.inf, last).astype(
        np.float32
    )


def made(first: Array, last: Array, exact: Ball | tuple[F64, F64], out: str) -> Interval:
    """An interval from the ends of the fp32 results, before their rounding to `out`.

    Rounding to nearest is monotone: what lies between two numbers lies, rounded, between the two
    rounded.
    """
    low, high = exact.ends if isinstance(exact, Ball) else exact
    a, b = (nx.round_to(end, out).astype(np.float64) for end in (first, last))
    unknown = np.isnan(a) | np.isnan(b) | ~np.isfinite(low) | ~np.isfinite(high)
    unknown |= (np.isinf(a) | np.isinf(b)) & (a != b)
    minus, plus = np.float64(-np.inf), np.float64(np.inf)
    return Interval(
        np.where(unknown, minus, a), np.where(unknown, plus, b),
        np.where(unknown, minus, low), np.where(unknown, plus, high),
    )  # fmt: skip


def around(value: Operand, exact: Ball | tuple[F64, F64]) -> Interval:
    """The interval of one order: the contract's own result, and where the exact one lies."""
    y = result_values(value)
    return made(y.astype(np.float32), y.astype(np.float32), exact, "fp32")


def evaluated(words: Operand, out: str) -> F64:
    """The values of what `evaluate` gave (bf16 comes as words when the operands were arrays)."""
    if is_tensor(words):
        return result_values(words)
    return values(words, out, "result").astype(np.float64)
