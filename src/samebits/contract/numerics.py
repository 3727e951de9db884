"""Exactly rounded fp32 in NumPy: what "the bits of a contract" means, one operation at a time.

Every function here is the *definition* that fast code is compared with. It is written for reading:
arrays in, arrays out, no clever order. float32 arrays hold fp32; bf16, which NumPy does not have,
travels as uint16 words, and so may fp16.

A result that is NaN is always the canonical quiet NaN (0x7FC00000, 0x7FC0, 0x7E00): processors
disagree about payloads and signs of NaN, so a promise about bits has to name one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
U16 = npt.NDArray[np.uint16]
Array = npt.NDArray[Any]

CANONICAL_NAN = np.uint32(0x7FC00000).view(np.float32)
CANONICAL_NAN_BF16 = np.uint16(0x7FC0)
CANONICAL_NAN_FP16 = np.uint16(0x7E00)

#: Consecutive elements of a row that one leaf of a row reduction holds.
ROW_LEAF = 1024
#: Interleaved partial sums in a `lanes(16)` leaf.
LANES = 16

RowSumKind = Literal["sum", "squares"]


def canonical(x: Array) -> F32:
    """`x` as fp32 with every NaN replaced by the canonical one."""
    with np.errstate(all="ignore"):
        y = np.asarray(x, dtype=np.float32)
    return np.where(np.isnan(y), CANONICAL_NAN, y)


# ---- one operation, one rounding ----------------------------------------------------------------


def add32(a: Array, b: Array) -> F32:
    """``a + b``, rounded once to nearest even, gradual underflow, canonical NaN."""
    with np.errstate(all="ignore"):
        return canonical(np.asarray(a, np.float32) + np.asarray(b, np.float32))


def mul32(a: Array, b: Array) -> F32:
    """``a * b``, rounded once to nearest even, gradual underflow, canonical NaN."""
    with np.errstate(all="ignore"):
        return canonical(np.asarray(a, np.float32) * np.asarray(b, np.float32))


def sub32(a: Array, b: Array) -> F32:
    """``a - b``, rounded once to nearest even, gradual underflow, canonical NaN."""
    with np.errstate(all="ignore"):
        return canonical(np.asarray(a, np.float32) - np.asarray(b, np.float32))


def div32(a: Array, b: Array) -> F32:
    """``a / b``, rounded once to nearest even, gradual underflow, canonical NaN."""
    with np.errstate(all="ignore"):
        return canonical(np.asarray(a, np.float32) / np.asarray(b, np.float32))


def sqrt32(x: Array) -> F32:
    """The square root, rounded once to nearest even, canonical NaN."""
    with np.errstate(all="ignore"):
        return canonical(np.sqrt(np.asarray(x, np.float32)))


def fma32(a: Array, b: Array, c: Array) -> F32:
    """``a * b + c`` in fp32 with ONE rounding to nearest even; arguments broadcast.

    The product of two fp32 numbers is exact in fp64 (48 bits of 53). The sum with `c` may not be,
    and rounding it to fp64 and again to fp32 would be wrong near ties. So the fp64 sum is *rounded
    to odd*: Knuth's TwoSum gives the exact error of the sum, and if it is not zero the last bit of
    the sum is made odd, towards the exact value. Rounding that to fp32 gives the correctly rounded
    result (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008: 53 >= 24 + 2),
    subnormal results included. Inf, NaN and signed zero follow IEEE 754.
    """
    with np.errstate(all="ignore"):
        p = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32)
        return canonical(_add_to_odd(p, np.asarray(c, np.float32).astype(np.float64)))


def _add_to_odd(p: F64, c: F64) -> F64:
    """``p + c`` in fp64, rounded to odd (no overflow of fp64 may happen here)."""
    s = p + c
    t = s - p
    error = (p - (s - t)) + (c - t)  # s + error == p + c exactly, where s is finite
    word = s.view(np.int64) if s.ndim else s.reshape(1).view(np.int64).reshape(())
    inexact = np.isfinite(s) & (error != 0) & (word & 1 == 0)
    away_from_zero = (error > 0) == (s > 0)
    odd = np.where(inexact, word + np.where(away_from_zero, 1, -1), word)
    return np.asarray(odd, np.int64).view(np.float64)


# ---- storage types -----------------------------------------------------------------------------


def bf16_to_f32(words: Array) -> F32:
    """bf16 words (uint16, any shape) as fp32: exact; NaN becomes the canonical one."""
    return canonical((np.asarray(words, np.uint16).astype(np.uint32) << 16).view(np.float32))


def f32_to_bf16(x: Array) -> U16:
    """fp32 to bf16 words (uint16), rounded to nearest even, canonical NaN."""
    x = np.asarray(x, np.float32)
    u = np.ascontiguousarray(x).view(np.uint32).reshape(x.shape).astype(np.uint64)
    rounded = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), CANONICAL_NAN_BF16, rounded)


def fp16_to_f32(words: Array) -> F32:
    """fp16 (float16, or uint16 words) as fp32: exact; NaN becomes the canonical one."""
    words = np.asarray(words)
    half = words if words.dtype == np.float16 else words.astype(np.uint16).view(np.float16)
    return canonical(half.astype(np.float32))


def f32_to_fp16(x: Array) -> U16:
    """fp32 to fp16 words (uint16), rounded to nearest even, overflow to Inf, canonical NaN."""
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        half = np.ascontiguousarray(x).astype(np.float16).view(np.uint16).reshape(x.shape)
    return np.where(np.isnan(x), CANONICAL_NAN_FP16, half)


def round_to(x: Array, dtype: str) -> F32:
    """`x` rounded once to the storage type `dtype` ("fp32", "bf16", "fp16"), still held as fp32.

    Raises:
        KeyError: `dtype` is another name.
    """
    if dtype == "fp32":
        return canonical(x)
    narrow, widen = {"bf16": (f32_to_bf16, bf16_to_f32), "fp16": (f32_to_fp16, fp16_to_f32)}[dtype]
    return widen(narrow(x))


# ---- reductions of the CPU engine --------------------------------------------------------------


def fold_lanes(lanes: Array) -> F32:
    """Folds the last axis (a power of two) by halves: lane i += lane i+8, then i+4, i+2, i+1."""
    acc = np.asarray(lanes, np.float32)
    while acc.shape[-1] > 1:
        half = acc.shape[-1] // 2
        acc = add32(acc[..., :half], acc[..., half:])
    return acc[..., 0]


def _pad_last(x: Array, multiple: int) -> F32:
    """The last axis filled up with +0 to a multiple of `multiple`."""
    x = np.asarray(x, np.float32)
    missing = -x.shape[-1] % multiple
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def strided_dot(x: Array, w: Array, width: int) -> F32:
    """``x @ w.T`` by `width` interleaved fma chains, folded by halves. Width 1 is a plain chain.

    Lane l runs the fma chain over k = l, l + width, ... ascending from +0; the tail of K is filled
    with zeros on both operands.

    Args:
        x: [..., M, K], fp32 values (widen bf16 and fp16 first: that is exact).
        w: [..., N, K]; leading axes broadcast with those of `x`.
        width: a power of two.

    Returns:
        [..., M, N] fp32. K = 0 gives +0.
    """
    x, w = _pad_last(x, width), _pad_last(w, width)
    lead = np.broadcast_shapes(x.shape[:-2], w.shape[:-2])
    acc = np.zeros((*lead, x.shape[-2], w.shape[-2], width), np.float32)
    for k in range(0, x.shape[-1], width):
        acc = fma32(x[..., :, None, k : k + width], w[..., None, :, k : k + width], acc)
    return fold_lanes(acc)


def lanes16_dot(x: Array, w: Array) -> F32:
    """`strided_dot` with 16 lanes: the tree `lanes(16)` of the CPU engine's matmuls."""
    return strided_dot(x, w, LANES)


def fold_neighbours(lanes: Array) -> F32:
    """Folds the last axis (a power of two) by neighbours: lanes 2i + (2i + 1), and so on."""
    acc = np.asarray(lanes, np.float32)
    while acc.shape[-1] > 1:
        acc = add32(acc[..., 0::2], acc[..., 1::2])
    return acc[..., 0]


def lanes_row(
    x: Array, kind: RowSumKind, width: int, fold: Callable[[Array], F32] = fold_lanes
) -> F32:
    """One leaf of a row reduction over the last axis: `width` strided sums from +0, then a fold.

    `kind` is "sum" (IEEE additions) or "squares" (fma of x with itself).
    """
    x = _pad_last(x, width)
    acc = np.zeros((*x.shape[:-1], width), np.float32)
    for k in range(0, x.shape[-1], width):
        part = x[..., k : k + width]
        acc = add32(acc, part) if kind == "sum" else fma32(part, part, acc)
    return fold(acc)


def lanes16_row(x: Array, kind: RowSumKind = "sum") -> F32:
    """`lanes_row` with 16 lanes, folded 8-4-2-1."""
    return lanes_row(x, kind, LANES)


def fold_pairwise(leaves: Sequence[Array]) -> F32:
    """Folds leaves in the order of a binary counter: equal-sized neighbours first.

    A finished leaf carries up while its level is occupied (earlier + later). At the end the levels
    that are left are folded from the lowest to the highest: acc = higher + acc. The tree for n
    leaves is the same whether they come at once or one by one.

    Raises:
        ValueError: there is no leaf.
    """
    levels: list[F32 | None] = []
    for leaf in leaves:
        carry, level = canonical(leaf), 0
        while level < len(levels) and (earlier := levels[level]) is not None:
            carry, levels[level] = add32(earlier, carry), None
            level += 1
        if level == len(levels):
            levels.append(carry)
        else:
            levels[level] = carry
    acc: F32 | None = None
    for partial in levels:
        if partial is not None:
            acc = partial if acc is None else add32(partial, acc)
    if acc is None:
        raise ValueError("a fold needs at least one leaf")
    return acc


def row_sum(x: Array, kind: RowSumKind = "sum") -> F32:
    """Sum (or sum of squares) over the last axis with the CPU engine's tree for rows.

    Leaves of 1024 consecutive elements, each `lanes(16)` (`lanes16_row`), folded like a binary
    counter (`fold_pairwise`).

    Args:
        x: [..., K], fp32 values.
        kind: "sum" or "squares".

    Returns:
        [...] fp32. K = 0 gives +0.
    """
    x = np.asarray(x, np.float32)
    starts = range(0, max(x.shape[-1], 1), ROW_LEAF)
    return fold_pairwise([lanes16_row(x[..., k : k + ROW_LEAF], kind) for k in starts])
