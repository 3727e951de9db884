"""Whether a greedy token could be another one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samebits.contract.intervals.interval import Interval, result_values
from samebits.contract.numerics import F64
from samebits.contract.operands import Operand
from samebits.errors import ContractError, ShapeError


@dataclass(frozen=True)
class Certified:
    """Greedy tokens, and whether any order of summation could choose others. All [...].

    Attributes:
        token: index of the largest logit, the lowest one of equals; -1 in a row with a NaN.
        certain: True where no order that the interval covers chooses another token; False where a
            logit lies outside: then the interval is not that of these logits.
        rivals: how many other tokens some order could choose.
        slack: the smallest number that the token's logit can be minus the largest that any other
            can be: positive where the token is certain by more than a tie.
        outside: how many logits no order that the interval covers can give (a NaN is one).
    """

    token: npt.NDArray[np.int64]
    certain: npt.NDArray[np.bool_]
    rivals: npt.NDArray[np.int64]
    slack: F64
    outside: npt.NDArray[np.int64]


def certified_argmax(logits: Operand, interval: Interval) -> Certified:
    """Says for each row whether its greedy token could flip under any order of the interval.

    Args:
        logits: [..., V], the logits as computed: a tensor on a CPU, or an array of numbers.
        interval: of these logits: ``contract.interval(hidden, weight, order="any")``, in the dtype
            that they are compared in (`out_dtype`).

    Raises:
        ContractError: `interval` is none.
        DTypeError: the logits are not on a CPU.
        ShapeError: the shapes differ, or there is no token to choose.
    """
    if not isinstance(interval, Interval):
        raise ContractError(f"interval is {type(interval).__name__}: use contract.interval(...)")
    y = result_values(logits)
    if y.ndim < 1 or not y.shape[-1] or y.shape != interval.first.shape:
        raise ShapeError(
            f"logits {y.shape} and interval {interval.first.shape}: use one interval for each of "
            "at least one logit"
        )
    nan = np.isnan(y).any(-1)
    token = np.where(np.isnan(y), -np.inf, y).argmax(-1)
    at = token[..., None]
    least = np.take_along_axis(interval.first, at, -1)
    # A tie goes to the lower index.
    lower = np.arange(y.shape[-1]) < at
    reach = np.where(lower, interval.last >= least, interval.last > least)
    np.put_along_axis(reach, at, False, -1)
    others = interval.last.copy()
    np.put_along_axis(others, at, -np.inf, -1)
    known = np.isfinite(least[..., 0]) & ~nan
    with np.errstate(invalid="ignore"):
        slack = np.where(known, least[..., 0] - others.max(-1), -np.inf)
    rivals = reach.sum(-1)
    outside = (~interval.contains(y) | np.isnan(y)).sum(-1)
    certain = known & (rivals == 0) & (outside == 0)
    return Certified(
        np.where(nan, -1, token), certain, rivals.astype(np.int64), slack, outside.astype(np.int64)
    )
