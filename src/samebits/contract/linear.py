"""linear, and every other form of a matrix product: mm, addmm, bmm, baddbmm, mv, conv, ..."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from samebits.contract import numerics as nx
from samebits.contract.arithmetic import Arithmetic, BlockFma
from samebits.contract.base import Contract
from samebits.contract.dot import dot, require_gradual_underflow
from samebits.contract.intervals import linear as intervals
from samebits.contract.intervals.interval import Interval, Order
from samebits.contract.numerics import F32, Array
from samebits.contract.operands import OUTPUTS, SCALE_BLOCK, Operand, dtype_name, store, values
from samebits.contract.tree import Segment, Tree
from samebits.errors import ContractError, DTypeError, ShapeError


def _relu(y: F32) -> F32:
    return np.where(y > 0, y, np.where(np.isnan(y), y, np.float32(0)))


#: What an epilogue may end with; fp32 in, fp32 out, a function of each element alone.
ACTIVATIONS: dict[str, Callable[[F32], F32]] = {"relu": _relu}


@dataclass(frozen=True)
class LinearContract(Contract):
    """y[m, n] = epilogue(sum_k x[m, k] * w[n, k]), rounded once to the output type.

    Epilogue, in fp32 and in this order, every operation rounded once:
    "alpha" y = alpha * y; "bias" y = y + beta * c, where c is the bias of `linear` (beta = 1) or
    the matrix of `addmm` (with beta = 0 it is not looked at); then an activation by its name.

    Attributes:
        tree: the reduction along k.
        arithmetic: what one step of a chain does.
        input: storage type of x and w.
        output: storage type of y; the fp32 value is rounded to it once.
        scaling: "none"; "row" for fp8 with one fp32 scale for each row of x and each row of w: the
            sum is multiplied by x_scale * w_scale, that product being rounded first; or "block"
            for fp8 with one scale for each row of x and 128 of k, and one for each 128 x 128 block
            of w: every leaf of `segment(128)` is folded by acc = fma(leaf, x_scale * w_scale, acc)
            from +0, with the product of scales rounded.
        epilogue: names of the steps.

    Raises:
        ContractError: parts that do not fit together.
    """

    kind: ClassVar[str] = "linear"

    tree: Tree
    arithmetic: Arithmetic
    input: str
    output: str
    scaling: str = "none"
    epilogue: tuple[str, ...] = ("alpha", "bias")

    def __post_init__(self) -> None:
        a = self.arithmetic
        if self.output not in OUTPUTS:
            raise ContractError(f"output {self.output!r}: a result is fp32, bf16 or fp16")
        if isinstance(a, BlockFma) and a.input != self.input:
            raise ContractError(f"{a} does not multiply {self.input}")
        if self.input not in OUTPUTS and not isinstance(a, BlockFma):
            raise ContractError(f"{a} takes fp32, bf16 or fp16, not {self.input}")
        if self.scaling not in ("none", "row", "block"):
            raise ContractError(f"scaling {self.scaling!r}: use 'none', 'row' or 'block'")
        if self.scaling == "block" and self.tree != Segment(SCALE_BLOCK):
            raise ContractError(f"block scaling needs the tree segment({SCALE_BLOCK})")
        if "neighbours" in str(self.tree):
            raise ContractError(f"{self.tree}: lanes of a product are folded by halves")
        unknown = [s for s in self.epilogue if s not in ("alpha", "bias", *ACTIVATIONS)]
        if unknown:
            raise ContractError(f"epilogue steps {unknown} are not known")

    def drawn_tree(self) -> tuple[Tree, str, int, int]:
        return self.tree, "k", 4096, self.arithmetic.block

    def evaluate(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand | None = None,
        out_dtype: Any = "fp32",
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        x_scale: Operand | None = None,
        w_scale: Operand | None = None,
        engine: str | None = None,
    ) -> Operand:
        """The exact bits of the operation, computed on a CPU.

        The tree is laid over the operands' own k, whatever sizes the contract was asked for with:
        a part of a weight has the tree of the whole.

        Args:
            x: [..., M, K] or [K]; stored as `input` (see `operands.values`).
            weight: [N, K], or [..., N, K] with leading axes that broadcast with those of `x`.
            bias: broadcasts to the result; fp32, or stored as `input` or `output`.
            out_dtype: "fp32" (or torch.float32) gives the value before the last rounding, without
                bias the accumulators themselves; else the contract's output type.
            alpha: factor of the product.
            beta: factor of the bias.
            x_scale: fp32; [..., M, ceil(K / 128)] for scaling "block", [..., M, 1] for "row".
            w_scale: fp32; [ceil(N / 128), ceil(K / 128)] for "block", [N, 1] for "row".
            engine: see `dot.dot`.

        Returns:
            [..., M, N] (or [..., N] for a 1-D `x`); a tensor if `x` is one, else an array.

        Raises:
            ShapeError, DTypeError, ContractError: operands that the contract does not take.
        """
        require_gradual_underflow()
        out = dtype_name(out_dtype)
        if out not in ("fp32", self.output):
            raise ContractError(f"this contract rounds to {self.output}, not to {out}")
        a, w, xs, ws = self.operands(x, weight, x_scale, w_scale)
        y = self.sums(a if a.ndim > 1 else a[None], w, xs, ws, engine)
        y = y if a.ndim > 1 else y[..., 0, :]
        y = self.finish(y, bias, alpha, beta)
        return store(y, out, self.arithmetic.nan, x)

    def interval(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand | None = None,
        out_dtype: Any = "fp32",
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        x_scale: Operand | None = None,
        w_scale: Operand | None = None,
        order: Order = "contract",
        replay: bool = True,
        engine: str | None = None,
    ) -> Interval:
        """Between which numbers each result lies: certified, see docs/intervals.md.

        Args:
            x, weight, bias, out_dtype, alpha, beta, x_scale, w_scale: as in `evaluate`; for another
                weight take its own contract, whose tree may be another one.
            order: which orders of summation may have been used. "contract": this contract's.
                "split": every split of k into contiguous chains with edges on multiples of 64,
                folded so that neighbours meet. "any": every order at all, with this arithmetic.
            replay: with "contract": evaluate the contract, so that its own result is known and
                only the exact one is enclosed. False bounds both from the operands: a wider
                interval that owes nothing to the evaluator.
            engine: see `dot.dot`.

        Raises:
            ShapeError, DTypeError, ContractError: as `evaluate`; or an unknown order, or "split"
                of a contract whose leaves are no chains.
        """
        require_gradual_underflow()
        return intervals.interval(
            self, x, weight, bias, dtype_name(out_dtype), alpha=alpha, beta=beta, x_scale=x_scale,
            w_scale=w_scale, order=order, replay=replay, engine=engine,
        )  # fmt: skip

    def operands(
        self, x: Operand, weight: Operand, x_scale: Operand | None, w_scale: Operand | None
    ) -> tuple[F32, F32, F32 | None, F32 | None]:
        """The values of operands and scales, which fit together."""
        a, w = values(x, self.input, "x"), values(weight, self.input, "weight")
        if a.ndim < 1 or w.ndim < 2 or a.shape[-1] != w.shape[-1]:
            raise ShapeError(f"x {a.shape} and weight {w.shape}: use x [..., M, K], weight [N, K]")
        if self.scaling == "none":
            if x_scale is not None or w_scale is not None:
                raise ContractError("this contract has no scales")
            return a, w, None, None
        if x_scale is None or w_scale is None:
            raise ContractError("this contract needs x_scale and w_scale")
        xs, ws = values(x_scale, "fp32", "x_scale"), values(w_scale, "fp32", "w_scale")
        n, k = len(w), a.shape[-1]
        block = self.scaling == "block"
        leaves = -(-k // SCALE_BLOCK) if block else 1
        rows = a.shape[:-1] if a.ndim > 1 else (1,)
        if (
            w.ndim != 2
            or xs.shape != (*rows, leaves)
            or ws.shape != (-(-n // SCALE_BLOCK) if block else n, leaves)
        ):
            raise ShapeError(f"x_scale {xs.shape} and w_scale {ws.shape} do not fit {k=}, {n=}")
        return a, w, xs, ws

    def sums(
        self, x: F32, w: F32, xs: F32 | None = None, ws: F32 | None = None,
        engine: str | None = None,
    ) -> F32:  # fmt: skip
        """The sums over k, scales included, before the epilogue; operands as `operands` gives."""
        if xs is None or ws is None:
            return self._batched(x, w, engine)
        return self._scaled(x, w, xs, ws, engine)

    def _batched(self, x: F32, w: F32, engine: str | None) -> F32:
        if w.ndim == 2:
            flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
            y = dot(flat, w, self.tree, self.arithmetic, engine)
            return y.reshape(*x.shape[:-1], len(w))
        try:
            lead = np.broadcast_shapes(x.shape[:-2], w.shape[:-2])
        except ValueError as e:
            raise ShapeError(f"batches {x.shape[:-2]} and {w.shape[:-2]} do not broadcast") from e
        xb = np.broadcast_to(x, lead + x.shape[-2:])
        wb = np.broadcast_to(w, lead + w.shape[-2:])
        y = np.zeros((*lead, x.shape[-2], w.shape[-2]), np.float32)
        for i in np.ndindex(lead):
            y[i] = dot(xb[i], wb[i], self.tree, self.arithmetic, engine)
        return y

    def _scaled(self, x: F32, w: F32, xs: F32, ws: F32, engine: str | None) -> F32:
        k, n = x.shape[-1], w.shape[0]
        rows = math.prod(x.shape[:-1])
        flat, xs = x.reshape(rows, k), xs.reshape(rows, xs.shape[-1])
        if self.scaling == "row":
            y = dot(flat, w, self.tree, self.arithmetic, engine)
            return nx.mul32(y, nx.mul32(xs, ws.T)).reshape(*x.shape[:-1], n)
        acc = np.zeros((rows, n), np.float32)
        for i in range(xs.shape[-1]):
            at = slice(i * SCALE_BLOCK, (i + 1) * SCALE_BLOCK)
            leaf = dot(flat[:, at], w[:, at], self.tree, self.arithmetic, engine)
            scale = nx.mul32(xs[:, i : i + 1], np.repeat(ws[:, i], SCALE_BLOCK)[None, :n])
            acc = nx.fma32(leaf, scale, acc)
        return acc.reshape(*x.shape[:-1], n)

    def finish(self, y: F32, bias: Operand | None, alpha: float, beta: float) -> F32:
        for step in self.epilogue:
            if step == "alpha":
                y = nx.mul32(y, np.float32(alpha))
            elif step == "bias":
                if bias is not None and beta != 0:
                    y = nx.add32(y, nx.mul32(self.bias_of(bias, y), np.float32(beta)))
            else:
                y = ACTIVATIONS[step](y)
        if bias is not None and "bias" not in self.epilogue:
            raise ContractError("this contract has no bias")
        return y

    def bias_of(self, bias: Operand, y: F32) -> Array:
        words = isinstance(bias, np.ndarray) and bias.dtype.kind == "u"
        kind = self.input if words else dtype_name(bias.dtype)
        if kind not in ("fp32", self.input, self.output):
            raise DTypeError(f"bias is {kind}: use fp32, {self.input} or {self.output}")
        b = values(bias, kind, "bias")
        try:
            np.broadcast_to(b, y.shape)
        except ValueError as e:
            raise ShapeError(f"bias {b.shape} does not broadcast to {y.shape}") from e
        return b
