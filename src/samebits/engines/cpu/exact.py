"""Launchers of exact sums and products, and the fast twin of their evaluation.

A result is first computed in floating point with a bound of its error. Where that decides the
rounding it is done; where it does not, the terms are added again without any rounding.
"""

from __future__ import annotations

import numpy as np
import torch

from samebits.contract.exact.contract import twins
from samebits.contract.numerics import F32
from samebits.engines.cpu import DTYPE_CODE, _cpu

_OUTPUTS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Codes of csrc/exact_rows.hpp.
_VALUES = {"sum": 0, "squares": 1, "mean": 2, "norm": 3}
_SOFTMAXES = {"softmax": 0, "log_softmax": 1, "logsumexp": 2}


def product(
    x: torch.Tensor,
    w: torch.Tensor,
    c: torch.Tensor | None,
    out_dtype: torch.dtype,
    *,
    plain: bool = False,
) -> tuple[torch.Tensor, int]:
    """``x @ w.mT + c``, exact and rounded once.

    Args:
        x: [B, M, K] or [M, K], fp32, bf16 or fp16.
        w: [B, N, K] or [N, K], dtype of x.
        c: fp32, expands to the result; or None.
        out_dtype: fp32, bf16 or fp16.
        plain: sum every result without rounding, without the fast first step.

    Returns:
        The result, [B, M, N] or [M, N], and how many results needed the slow second step.
    """
    x, w = _rows(x), _rows(w)
    k, n = x.shape[-1], w.shape[-2]
    out = x.new_empty((*x.shape[:-1], n), dtype=out_dtype)
    batch = x.shape[0] if x.dim() == 3 else 1
    cb = cr = cc = 0
    if c is not None:
        cb, cr, cc = _strides(c.expand(out.shape))
    again = _cpu.exact_product(
        x.data_ptr(), w.data_ptr(), 0 if c is None else c.data_ptr(), out.data_ptr(),
        batch, x.shape[-2], n, k, *_strides(x)[:2], *_strides(w)[:2], cb, cr, cc, *_strides(out),
        DTYPE_CODE[x.dtype], DTYPE_CODE[out_dtype], plain,
    )  # fmt: skip
    return out, again


def rows(
    x: torch.Tensor, out_dtype: torch.dtype, *, squares: bool = False
) -> tuple[torch.Tensor, int]:
    """The exact sum (of squares) along the last axis of x [R, n], rounded once.

    Returns:
        [R], and how many rows needed the slow second step.
    """
    return row_values("squares" if squares else "sum", x, out_dtype)


def row_values(value: str, x: torch.Tensor, out_dtype: torch.dtype) -> tuple[torch.Tensor, int]:
    """ "sum", "squares", "mean" or "norm" of rows x [R, n]; the last two of S and Q in fp32.

    Returns:
        [R], and how many rows needed the slow second step.
    """
    x = _rows(x)
    count, n = x.shape
    out = x.new_empty(count, dtype=out_dtype)
    again = _cpu.exact_rows(
        x.data_ptr(), count, x.stride(0), n, _VALUES[value], out.data_ptr(), DTYPE_CODE[x.dtype],
        DTYPE_CODE[out_dtype],
    )  # fmt: skip
    return out, again


def softmax(kind: str, x: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """ "softmax", "log_softmax" or "logsumexp" of rows x [R, n] -> [R, n] or [R]."""
    x = _rows(x)
    count, n = x.shape
    out = x.new_empty((count,) if kind == "logsumexp" else (count, n), dtype=out_dtype)
    _cpu.exact_softmax(
        _SOFTMAXES[kind], x.data_ptr(), count, x.stride(0), n, out.data_ptr(), DTYPE_CODE[x.dtype],
        DTYPE_CODE[out_dtype],
    )  # fmt: skip
    return out


def norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, layer: bool
) -> torch.Tensor:
    """Rows x [R, n] normalised with exact sums: `ops.exact.layer_norm`, or `rms_norm`."""
    x = _rows(x)
    out = x.new_empty(x.shape)
    w, b = (None if p is None else p.contiguous() for p in (weight, bias))
    _cpu.exact_norm(
        x.data_ptr(), x.shape[0], x.stride(0), x.shape[1], 0 if w is None else w.data_ptr(),
        0 if b is None else b.data_ptr(), eps, layer, out.data_ptr(), DTYPE_CODE[x.dtype],
    )  # fmt: skip
    return out


def columns(x: torch.Tensor, out_dtype: torch.dtype) -> tuple[torch.Tensor, int]:
    """The exact sum along the first axis of x [T, n], rounded once: for few terms.

    Returns:
        [n], and how many results needed the slow second step.
    """
    x = _rows(x)
    terms, n = x.shape
    out = x.new_empty(n, dtype=out_dtype)
    again = _cpu.exact_columns(
        x.data_ptr(), terms, x.stride(0), n, out.data_ptr(), DTYPE_CODE[x.dtype],
        DTYPE_CODE[out_dtype],
    )  # fmt: skip
    return out, again


def partial(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x @ w.T`` in fp64, x [M, K], w [N, K], and what each sum may be wrong by: both [M, N]."""
    x, w = _rows(x), _rows(w)
    y = x.new_empty((x.shape[0], w.shape[0]), dtype=torch.float64)
    e = torch.empty_like(y)
    _cpu.exact_partial(
        x.data_ptr(), w.data_ptr(), y.data_ptr(), e.data_ptr(), x.shape[0], w.shape[0], x.shape[1],
        x.stride(0), w.stride(0), DTYPE_CODE[x.dtype],
    )  # fmt: skip
    return y, e


def join(
    y: torch.Tensor, e: torch.Tensor, out_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of parts y [P, n] that may be wrong by e [P, n], rounded once.

    Returns:
        [n], and a mask of what the bounds leave open.
    """
    parts, n = y.shape
    out, left = y.new_empty(n, dtype=out_dtype), y.new_empty(n, dtype=torch.bool)
    _cpu.exact_join(
        y.data_ptr(), e.data_ptr(), parts, n, out.data_ptr(), DTYPE_CODE[out_dtype],
        left.data_ptr(),
    )  # fmt: skip
    return out, left


def limbs(
    x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """Sums without rounding of x[rows[i]] . w[columns[i]]: integers that may be added, [i, 20]."""
    x, w = _rows(x), _rows(w)
    found = rows.new_empty((len(rows), _cpu.EXACT_LIMBS), dtype=torch.int64)
    _cpu.exact_limbs(
        x.data_ptr(), w.data_ptr(), x.shape[1], x.stride(0), w.stride(0), DTYPE_CODE[x.dtype],
        rows.data_ptr(), columns.data_ptr(), len(rows), found.data_ptr(),
    )  # fmt: skip
    return found


def value(held: torch.Tensor, term: torch.Tensor | None, out_dtype: torch.dtype) -> torch.Tensor:
    """R(what limbs [i, 20] hold + term): term fp32 [i] or None."""
    held = held.contiguous()
    out = held.new_empty(len(held), dtype=out_dtype)
    _cpu.exact_value(
        held.data_ptr(), 0 if term is None else term.data_ptr(), len(held), out.data_ptr(),
        DTYPE_CODE[out_dtype],
    )  # fmt: skip
    return out


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


def _strides(x: torch.Tensor) -> tuple[int, int, int]:
    """Of batch, row and column."""
    row, column = x.stride()[-2:]
    return (x.stride(0) if x.dim() == 3 else 0), row, column


def _twin(x: F32, w: F32, c: F32 | None, dtype: str) -> F32:
    """`contract.exact.integers.exact_dot` in C++: every result summed without rounding."""
    tensors = [None if t is None else torch.from_numpy(np.array(t, np.float32)) for t in (x, w, c)]
    a, b, term = tensors
    assert a is not None and b is not None
    out, _ = product(a, b, term, _OUTPUTS[dtype], plain=True)
    result: F32 = out.to(torch.float32).numpy()
    return result


twins["cpu"] = _twin
