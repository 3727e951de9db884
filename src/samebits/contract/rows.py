"""Reductions along a row: sums, softmax, normalisations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from samebits.contract import functions
from samebits.contract import numerics as nx
from samebits.contract.arithmetic import IEEE_FMA, Arithmetic, IeeeFma
from samebits.contract.base import Contract
from samebits.contract.dot import require_gradual_underflow
from samebits.contract.intervals import rows as intervals
from samebits.contract.intervals.interval import Interval, Order
from samebits.contract.numerics import F32
from samebits.contract.operands import OUTPUTS, Operand, dtype_name, store, values
from samebits.contract.tree import Lanes, Leaf, Segment, Tree, reduce
from samebits.errors import ContractError, DTypeError, ShapeError

#: The tree of every row reduction of the CPU engine.
ROW_TREE = Segment(nx.ROW_LEAF, Lanes(nx.LANES), "pairwise")
#: The tree of every row reduction on sm_90. A leaf fills a thread block's registers, so that a long
#: row may be shared by many; lanes are loads of 16 bytes a thread, and neighbours meet first in a
#: thread, then in a warp, then across warps. Lanes without an element are +0, which changes no sum
#: that starts from +0: a short row's tree is the same with fewer lanes.
HOPPER_LEAF, HOPPER_LANES = 8192, 1024
HOPPER_ROW_TREE = Segment(HOPPER_LEAF, Lanes(HOPPER_LANES, "neighbours"), "pairwise")

#: What each operation computes from a row x of n elements. S(t) is the sum of t along the tree by
#: additions, Q(t) the sum of squares by fma(t, t, acc); max is exact; every other operation is
#: rounded once, in the order written.
FORMULAS: dict[str, str] = {
    "sum": "S(x)",
    "mean": "S(x) / n",
    "var": "Q(x - u) / (n - correction), u = S(x) / n",
    "std": "sqrt(Q(x - u) / (n - correction)), u = S(x) / n",
    "norm": "sqrt(Q(x))",
    "logsumexp": "log(S(exp(x - m))) + m, m = max x or 0 if that is infinite",
    "softmax": "e / S(e), e = exp(x - m), m = max x",
    "log_softmax": "(x - m) - log(S(exp(x - m))), m = max x",
    "rms_norm": "(x * r) * weight, r = 1 / sqrt(Q(x) / n + eps)",
    "layer_norm": "fma((x - u) * r, weight, bias), r = 1 / sqrt(Q(x - u) / n + eps), u = S(x) / n",
}
#: The exponential operations on sm_90. Every leaf has its own maximum m_l, so that it is read once,
#: and its sum is brought to the row's maximum before the fold; [m] is m, or 0 where that is
#: infinite; expf is `functions.exp_flush`.
LEAF_FORMULAS: dict[str, str] = {
    "softmax": "expf(x - m) * (1 / s), s = S(S_l(expf(x - [m_l])) * expf(m_l - m)), m = max x",
    "log_softmax": "(x - m) - log(s), s = S(S_l(expf(x - [m_l])) * expf(m_l - m)), m = max x",
    "logsumexp": "log(s) + [m], s = S(S_l(expf(x - [m_l])) * expf(m_l - [m])), m = max x",
}


@dataclass(frozen=True)
class RowContract(Contract):
    """A reduction along one row, or a row divided by one; computed in fp32, rounded once.

    Attributes:
        op: one of `FORMULAS`.
        formula: what it computes, in the notation of `FORMULAS`; or that of `LEAF_FORMULAS`.
        tree: of the sums S and Q.
        arithmetic: IEEE fp32.
        input: storage type of the row (and of weight and bias).
        output: storage type of the result.

    Raises:
        ContractError: parts that do not fit together.
    """

    kind: ClassVar[str] = "row"

    op: str
    input: str
    output: str
    tree: Tree = ROW_TREE
    arithmetic: Arithmetic = IEEE_FMA
    formula: str = ""

    def __post_init__(self) -> None:
        if self.op not in FORMULAS:
            raise ContractError(f"no row contract for {self.op!r}: use one of {list(FORMULAS)}")
        object.__setattr__(self, "formula", self.formula or FORMULAS[self.op])
        if self.formula not in (FORMULAS[self.op], LEAF_FORMULAS.get(self.op)):
            raise ContractError(f"{self.op} is {FORMULAS[self.op]!r}, not {self.formula!r}")
        if self.input not in OUTPUTS or self.output not in OUTPUTS:
            raise ContractError(f"{self.op}: {self.input} to {self.output} is not covered")
        if not isinstance(self.arithmetic, IeeeFma):
            raise ContractError("row reductions are IEEE fp32")

    def drawn_tree(self) -> tuple[Tree, str, int, int]:
        return self.tree, "i", 4096, 1

    def evaluate(
        self,
        x: Operand,
        weight: Operand | None = None,
        bias: Operand | None = None,
        *,
        eps: float = 1e-5,
        correction: float = 1,
        out_dtype: Any = "fp32",
    ) -> Operand:
        """The exact bits along the last axis of `x`, computed on a CPU.

        Args:
            x: [..., n], stored as `input`.
            weight: [n], for rms_norm and layer_norm; stored as `input`.
            bias: [n], for layer_norm; stored as `input`.
            eps: for rms_norm and layer_norm.
            correction: for var and std.
            out_dtype: "fp32" gives the value before the last rounding.

        Returns:
            [...] for a reduction, [..., n] otherwise; a tensor if `x` is one, else an array.

        Raises:
            ShapeError, DTypeError, ContractError: operands that the contract does not take.
        """
        require_gradual_underflow()
        out = dtype_name(out_dtype)
        if out not in ("fp32", self.output):
            raise ContractError(f"this contract rounds to {self.output}, not to {out}")
        v, w, b = self.operands(x, weight, bias)
        y = self.compute(v, w, b, np.array(eps, np.float32), correction)
        return store(y, out, self.arithmetic.nan, x)

    def interval(
        self,
        x: Operand,
        weight: Operand | None = None,
        bias: Operand | None = None,
        *,
        eps: float = 1e-5,
        correction: float = 1,
        out_dtype: Any = "fp32",
        order: Order = "contract",
    ) -> Interval:
        """Between which numbers each result lies: certified, see docs/intervals.md.

        Args:
            x, weight, bias, eps, correction, out_dtype: as in `evaluate`.
            order: "contract": sums along this contract's tree. "any": in every order, with exp and
                log that are right to 2 units in the last place.

        Raises:
            ShapeError, DTypeError, ContractError: as `evaluate`; or an unknown order.
        """
        require_gradual_underflow()
        return intervals.interval(
            self, x, weight, bias, dtype_name(out_dtype), eps=eps, correction=correction,
            order=order,
        )  # fmt: skip

    def operands(
        self, x: Operand, weight: Operand | None, bias: Operand | None
    ) -> tuple[F32, F32 | None, F32 | None]:
        """The values of row, weight and bias, which fit together."""
        v = values(x, self.input, "x")
        if v.ndim < 1:
            raise ShapeError("x has no axis to reduce")
        w, b = (
            None if t is None else values(t, self.input, name)
            for t, name in ((weight, "weight"), (bias, "bias"))
        )
        for name, t in (("weight", w), ("bias", b)):
            if t is not None and t.shape != v.shape[-1:]:
                raise ShapeError(f"{name} {t.shape} does not fit rows of {v.shape[-1]}")
            if t is not None and (self.op not in ("rms_norm", "layer_norm")):
                raise DTypeError(f"{self.op} takes no {name}")
        return v, w, b

    def sum(self, x: F32, kind: nx.RowSumKind = "sum") -> F32:
        """S(x), or Q(x) with kind "squares", along the last axis."""

        def leaf(leaf: Leaf, start: int, stop: int) -> F32:
            return _leaf_sum(leaf, x[..., start:stop], kind)

        return reduce(self.tree, 0, x.shape[-1], leaf, nx.add32)

    def compute(self, x: F32, w: F32 | None, b: F32 | None, eps: F32, correction: float) -> F32:
        """The fp32 values of `evaluate`, before they are stored; operands as `operands` gives."""
        op, total, n = self.op, self.sum, np.float32(x.shape[-1])
        if op == "sum":
            return total(x)
        if op == "mean":
            return nx.div32(total(x), n)
        if op == "norm":
            return nx.sqrt32(total(x, "squares"))
        if op in ("softmax", "log_softmax", "logsumexp"):
            leaves = self.formula == LEAF_FORMULAS.get(op)
            return self._exponential_leaves(x) if leaves else self._exponential(x)
        d = x if op == "rms_norm" else nx.sub32(x, nx.div32(total(x), n)[..., None])
        squares = total(d, "squares")
        if op in ("var", "std"):
            v = nx.div32(squares, np.float32(max(0.0, float(n) - correction)))
            return v if op == "var" else nx.sqrt32(v)
        r = nx.div32(np.float32(1), nx.sqrt32(nx.add32(nx.div32(squares, n), eps)))
        t = nx.mul32(d, r[..., None])
        if w is None:
            return t if b is None else nx.add32(t, b)
        return nx.mul32(t, w) if b is None else nx.fma32(t, w, b)

    def _exponential(self, x: F32) -> F32:
        # A NaN is passed over here and reaches the result through the sum; -0 becomes +0.
        top = np.fmax.reduce(x, axis=-1, initial=np.float32(-np.inf))
        m = nx.add32(top, np.float32(0))
        if self.op == "logsumexp":
            m = np.where(np.isinf(m), np.float32(0), m)
        d = nx.sub32(x, m[..., None])
        e = functions.exp(d)
        s = self.sum(e)
        if self.op == "softmax":
            return nx.div32(e, s[..., None])
        log_s = functions.log(s)
        return nx.add32(log_s, m) if self.op == "logsumexp" else nx.sub32(d, log_s[..., None])

    def _exponential_leaves(self, x: F32) -> F32:
        zero, tops = np.float32(0), []

        def finite(m: F32) -> F32:
            return np.where(np.isinf(m), zero, m)

        def of_leaf(_: Leaf, start: int, stop: int) -> F32:
            # A NaN is passed over here and reaches the result through the sum; -0 becomes +0.
            top = np.fmax.reduce(x[..., start:stop], axis=-1, initial=np.float32(-np.inf))
            tops.append(nx.add32(top, zero))
            return tops[-1]

        m = reduce(self.tree, 0, x.shape[-1], of_leaf, np.maximum)
        m = finite(m) if self.op == "logsumexp" else m
        remaining = iter(tops)

        def sum_of_leaf(kind: Leaf, start: int, stop: int) -> F32:
            top = next(remaining)
            e = functions.exp_flush(nx.sub32(x[..., start:stop], finite(top)[..., None]))
            return nx.mul32(_leaf_sum(kind, e, "sum"), functions.exp_flush(nx.sub32(top, m)))

        s = reduce(self.tree, 0, x.shape[-1], sum_of_leaf, nx.add32)
        if self.op == "logsumexp":
            return nx.add32(functions.log(s), m)
        d = nx.sub32(x, m[..., None])
        if self.op == "log_softmax":
            return nx.sub32(d, functions.log(s)[..., None])
        return nx.mul32(functions.exp_flush(d), nx.div32(np.float32(1), s)[..., None])


def _leaf_sum(leaf: Leaf, x: F32, kind: nx.RowSumKind) -> F32:
    width, fold = 1, nx.fold_lanes
    if isinstance(leaf, Lanes):
        width = leaf.width
        fold = nx.fold_lanes if leaf.fold == "halves" else nx.fold_neighbours
    return nx.lanes_row(x, kind, width, fold)
