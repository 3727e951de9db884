"""How a product added in each of two runs: the reduction trees that `samebits.reveal` sees."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from samebits.check.cause.capture import Operation
from samebits.check.cause.factors import Isolation
from samebits.errors import RevealError
from samebits.reveal import reveal

#: Where the factors are among the operands, and whether the second lies transposed.
_FORMS = {"mm": (0, 1, True), "addmm": (1, 2, True), "linear": (0, 1, False)}


def trees(isolation: Isolation) -> tuple[str, ...]:
    """The tree of each call of a product, in words; nothing where it cannot be probed."""
    ops = isolation.first, isolation.second
    rows = isolation.rows
    places = (rows[0].place, rows[1].place) if rows else (0, 0)
    try:
        return tuple(line for op, place in zip(ops, places, strict=True) for line in _of(op, place))
    except RevealError:
        return ()


def _of(op: Operation, place: int) -> Iterator[str]:
    """One line, or none.

    Raises:
        RevealError: the kernel is not a sum that can be probed.
    """
    form = _FORMS.get(str(op.func._schema.name).removeprefix("aten::"))
    if form is None or not str(op.func._schema.name).startswith("aten::"):
        return
    left, right, transposed = form
    x, w = op.operands[left], op.operands[right]
    if x.dim() != 2 or w.dim() != 2:
        return
    rest = [torch.zeros_like(t) for t in op.operands]
    weight = w.mT if transposed else w

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        operands = list(rest)
        operands[left] = a.reshape(x.shape)
        # The weight keeps its layout, which a library's choice of kernel depends on.
        laid = torch.empty_like(w)
        laid.copy_(b.mT if transposed else b)
        operands[right] = laid
        args, kwargs = op.with_operands(operands)
        result: torch.Tensor = op.func(*args, **kwargs)
        return result

    with op.settings.in_force():
        found = reveal(
            call, op="linear", k=x.shape[1], m=len(x), n=len(weight), dtype=x.dtype,
            device=x.device, row=place, arithmetic=False,
        )  # fmt: skip
    yield f"{len(x)} {'row' if len(x) == 1 else 'rows'}: {found.tree.describe()}"
