"""Rows with exact sums: the formulas of `contract.rows`, their sums S and Q without a tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samebits.contract import numerics as nx
from samebits.contract.exact.integers import exact_sum
from samebits.contract.numerics import F32
from samebits.contract.operands import Operand
from samebits.contract.rows import FORMULAS, RowContract

#: As in `contract.rows`, but that a plain sum is rounded once, to the result's type.
ROW_FORMULAS: dict[str, str] = {**FORMULAS, "sum": "R(sum x)"}


@dataclass(frozen=True)
class _ExactRows(RowContract):
    """The arithmetic of `RowContract` with other sums. Never leaves this module."""

    def sum(self, x: F32, kind: nx.RowSumKind = "sum") -> F32:
        return exact_sum(x, squares=kind == "squares")


def compute_row(
    op: str, input: str, out: str, x: Operand, weight: Operand | None = None,
    bias: Operand | None = None, *, eps: float = 1e-5, correction: float = 1,
) -> F32:  # fmt: skip
    """fp32 values along the last axis of `x`, before they are stored as `out`.

    Arguments, shapes and errors as `RowContract.evaluate`.
    """
    row = _ExactRows(op, input, out)
    v, w, b = row.operands(x, weight, bias)
    if op == "sum":
        return exact_sum(v, out)
    return row.compute(v, w, b, np.array(eps, np.float32), correction)
