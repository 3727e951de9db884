"""What lies between recorded products and attention, computed again: gates and rotary embedding.

Both are elementwise: every step is one IEEE operation, or a function that all devices share, and is
rounded to the type of its operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from samebits.contract import FORMATS, activations
from samebits.contract import numerics as nx
from samebits.contract.operands import store, widen
from samebits.errors import ReceiptError
from samebits.guard.receipts.operands import Attended, Gated, Product, Rotated, Sample

Words = np.ndarray[Any, Any]
Rows = tuple[Words, Words]
"""Recorded and computed words of a row."""

_WORD = {16: np.uint16, 32: np.uint32}
_FUNCTIONS = {"silu": activations.silu, "gelu_tanh": activations.gelu_tanh}
_NAN = 0x7FC00000


class Between:
    """The samples of a receipt, of which some are operands and results of others."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._products = {(s.place, s.position): s for s in samples if isinstance(s, Product)}
        self._attended = {(s.place, s.position): s for s in samples if isinstance(s, Attended)}

    def rows(self, sample: Gated | Rotated) -> Rows:
        """What was recorded as a sample's result, and what it is.

        A NaN has the recorded payload: multiplications and additions are torch's own, and
        processors differ there.

        Raises:
            ReceiptError: operands are missing, or do not fit together.
        """
        was, y = self._gate(sample) if isinstance(sample, Gated) else self._rotary(sample)
        both = np.isnan(y) & np.isnan(widen(was, sample.dtype))
        return was, np.where(both, was, _words(y, sample.dtype))

    def _gate(self, sample: Gated) -> Rows:
        function = _FUNCTIONS.get(sample.function)
        found = [
            self._products.get((place, sample.position))
            for place in (sample.gate, sample.up, sample.down)
        ]
        gate, up, down = found
        if function is None or gate is None or up is None or down is None:
            raise _unfit(sample)
        x, v, was = _fitting(sample, gate.y, up.y, down.x)
        inner = _rounded(function(widen(x, sample.dtype)), sample.dtype)
        return was, _rounded(nx.mul32(inner, widen(v, sample.dtype)), sample.dtype)

    def _rotary(self, sample: Rotated) -> Rows:
        dtype, n = sample.dtype, sample.n
        product = self._products.get((sample.query, sample.position))
        attended = self._attended.get((sample.place, sample.position))
        if product is None or attended is None or attended.head != sample.head:
            raise _unfit(sample)
        size = n * FORMATS[dtype].bits // 8
        head = product.y[sample.head * size : (sample.head + 1) * size]
        *operands, was = _fitting(sample, head, sample.cos, sample.sin, attended.q)
        x, cos, sin = (widen(row, dtype) for row in operands)
        turned = np.concatenate([-x[n // 2 :], x[: n // 2]])
        a, b = _rounded(nx.mul32(x, cos), dtype), _rounded(nx.mul32(turned, sin), dtype)
        return was, _rounded(nx.add32(a, b), dtype)


def word_array(raw: bytes, dtype: str) -> Words:
    """Stored words of a type."""
    return np.frombuffer(raw, _WORD[FORMATS[dtype].bits])


def _fitting(sample: Gated | Rotated, *rows: bytes) -> list[Words]:
    if any(len(row) != sample.n * FORMATS[sample.dtype].bits // 8 for row in rows):
        raise _unfit(sample)
    return [word_array(row, sample.dtype) for row in rows]


def _unfit(sample: Gated | Rotated) -> ReceiptError:
    return ReceiptError(f"the operands that {sample.place} needs do not fit together")


def _words(x: nx.F32, dtype: str) -> Words:
    """fp32 values as words of a type."""
    stored: Any = store(x, dtype, _NAN, x)
    return np.ascontiguousarray(stored).view(_WORD[FORMATS[dtype].bits])


def _rounded(x: nx.F32, dtype: str) -> nx.F32:
    """fp32 values, rounded to a type."""
    return widen(_words(x, dtype), dtype)
