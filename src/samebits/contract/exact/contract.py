"""The contract without a tree: the exact sum, rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from samebits.contract.base import Contract
from samebits.contract.dot import require_gradual_underflow
from samebits.contract.exact import integers
from samebits.contract.exact.attention import ATTENTION_FORMULA, attend
from samebits.contract.exact.rows import ROW_FORMULAS, compute_row
from samebits.contract.numerics import CANONICAL_NAN, F32
from samebits.contract.operands import OUTPUTS, Operand, dtype_name, is_tensor, store, values
from samebits.contract.tree import Chain, Tree
from samebits.errors import ContractError, DTypeError, ShapeError

#: What every operation computes. R rounds to the result's type, to nearest even; S and Q are sums
#: and sums of squares, exact, then rounded to fp32; everything else is fp32, one rounding each.
FORMULAS: dict[str, str] = {
    "linear": "R(sum x * w + bias)", "attention": ATTENTION_FORMULA, **ROW_FORMULAS,
}  # fmt: skip

#: x [M, K], w [N, K], c [M, N] or None, storage type of the result -> fp32 [M, N]
ExactDot = Callable[[F32, F32, "F32 | None", str], F32]

#: Faster twins of `integers.exact_dot`, by name; engines add theirs when they are imported.
twins: dict[str, ExactDot] = {}
#: Products from which a twin is worth its call.
_FAST_FROM = 1 << 12


@dataclass(frozen=True)
class ExactContract(Contract):
    """Sums without rounding, and so without a tree: the correctly rounded value of the exact sum.

    Order, split, batch, threads, device, number of ranks and a permutation of the terms cannot
    matter: no result mentions them. Inf and NaN: a NaN among the terms of a sum (Inf * 0 is one),
    or Inf of both signs, gives the canonical NaN on every device; else Inf among them gives that
    Inf. What rounds beyond the largest number is Inf, a sum of zero is +0, underflow is gradual.

    Attributes:
        op: one of `FORMULAS`.
        input: storage type of the operands: "fp32", "bf16" or "fp16".
        output: storage type of the result.
        formula: what it computes.

    Raises:
        ContractError: parts that do not fit together.
    """

    kind: ClassVar[str] = "exact"

    op: str
    input: str
    output: str
    formula: str = ""

    def __post_init__(self) -> None:
        if self.op not in FORMULAS:
            raise ContractError(
                f"no exact contract for {self.op!r}: use one of {', '.join(FORMULAS)}"
            )
        object.__setattr__(self, "formula", self.formula or FORMULAS[self.op])
        if self.formula != FORMULAS[self.op]:
            raise ContractError(f"{self.op} is {FORMULAS[self.op]!r}, not {self.formula!r}")
        if self.input not in OUTPUTS or self.output not in OUTPUTS:
            raise ContractError(
                f"exact {self.op}: {self.input} to {self.output} is not covered: operands and "
                "results are fp32, bf16 or fp16"
            )

    def drawn_tree(self) -> tuple[Tree, str, int, int]:
        return Chain(), "k", 0, 1

    def render(self, fmt: str = "text", *, length: int | None = None) -> str:
        """The contract's text: there is no tree to draw.

        Raises:
            ContractError: a format other than "text".
        """
        if fmt != "text":
            raise ContractError("an exact contract has no tree to draw: use the format 'text'")
        return f"{self}\nno tree: the exact sum of all terms, rounded once\n"

    def evaluate(self, *operands: Any, out_dtype: Any = None, **options: Any) -> Operand:
        """The exact bits of the operation, computed on a CPU with integers.

        Args:
            operands: "linear": x [..., M, K] or [K], weight [..., N, K] and, optionally, bias,
                which broadcasts to the result (stored as `input` or fp32). "attention": q, k and v,
                see `attention.attend`. Rows: as `RowContract.evaluate`.
            out_dtype: "fp32" or the contract's output type, which is the default. Of a sum or a
                product "fp32" is the exact value rounded once to fp32.
            options: "linear": engine, "integers" or the name of a twin; "attention": see
                `attention.attend`; rows: `eps`, `correction`.

        Returns:
            A tensor if the first operand is one, else an array.

        Raises:
            ShapeError, DTypeError, ContractError: operands that the contract does not take.
        """
        require_gradual_underflow()
        out = self.output if out_dtype is None else dtype_name(out_dtype)
        if out not in ("fp32", self.output):
            raise ContractError(f"this contract rounds to {self.output}, not to {out}")
        if self.op == "linear":
            y = self._linear(*operands, out=out, **options)
        elif self.op == "attention":
            y = attend(self.input, *operands, **options)
        else:
            y = compute_row(self.op, self.input, out, *operands, **options)
        return store(y, out, int(CANONICAL_NAN.view(np.uint32)), operands[0])

    def _linear(
        self, x: Operand, weight: Operand, bias: Operand | None = None, *, out: str,
        engine: str | None = None,
    ) -> F32:  # fmt: skip
        a, w = values(x, self.input, "x"), values(weight, self.input, "weight")
        if a.ndim < 1 or w.ndim < 2 or a.shape[-1] != w.shape[-1]:
            raise ShapeError(f"x {a.shape} and weight {w.shape}: use x [..., M, K], weight [N, K]")
        rows = a if a.ndim > 1 else a[None]
        lead = _batch(rows.shape[:-2], w.shape[:-2])
        xb = np.broadcast_to(rows, lead + rows.shape[-2:])
        wb = np.broadcast_to(w, lead + w.shape[-2:])
        shape = (*lead, rows.shape[-2], w.shape[-2])
        c = None if bias is None else self._bias(bias, shape)
        y = np.zeros(shape, np.float32)
        run = _engine(engine, math.prod(shape) * a.shape[-1])
        for i in np.ndindex(lead):
            y[i] = run(xb[i], wb[i], None if c is None else c[i], out)
        return y if a.ndim > 1 else y[..., 0, :]

    def _bias(self, bias: Operand, shape: tuple[int, ...]) -> F32:
        words = not is_tensor(bias) and bias.dtype.kind == "u"  # type: ignore[union-attr]
        kind = self.input if words else dtype_name(bias.dtype)
        if kind not in ("fp32", self.input):
            raise DTypeError(f"bias is {kind}: use fp32 or {self.input}")
        b = values(bias, kind, "bias")
        try:
            return np.broadcast_to(b, shape)
        except ValueError as e:
            raise ShapeError(f"bias {b.shape} does not broadcast to {shape}") from e


def _batch(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError as e:
        raise ShapeError(f"batches {a} and {b} do not broadcast") from e


def _engine(name: str | None, products: int) -> ExactDot:
    if name is None:
        name = next(iter(twins), "integers") if products >= _FAST_FROM else "integers"
    if name == "integers":
        return integers.exact_dot
    if name not in twins:
        raise ContractError(f"engine {name!r} is not registered: use integers or one of {[*twins]}")
    return twins[name]
