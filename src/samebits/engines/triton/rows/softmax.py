"""Softmax, log-softmax, logsumexp and the log-probability of given tokens.

A leaf of 8192 elements stays in registers: its maximum, its exponentials and their sum come from
one read. A row of several leaves has one (maximum, sum) pair a leaf; whoever folds the pairs, from
registers or from memory, does it in the contract's order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.functions import exp_flush, exp_of_negative, log
from samebits.engines.triton.launch import launch
from samebits.engines.triton.rows.schedule import (
    LEAF,
    MOST_LEAVES,
    RowSchedule,
    cdiv,
    leaves_of,
    power_above,
    width_of,
)
from samebits.engines.triton.rows.tree import (
    begin,
    fold_pairs,
    load_chunks,
    max_chunks,
    overlaps,
    sum_row,
)
from samebits.errors import ShapeError


@triton.jit
def finite(m):
    """`m`, or 0 where it is infinite."""
    return tl.where(tl.abs(m) == float("inf"), 0.0, m)


@triton.jit
def leaf_pair(chunks, C: tl.constexpr):
    """The maximum m of a leaf of C chunks [R, W], and S(expf(x - m)) with an infinite m as 0."""
    m = max_chunks(chunks, C)
    centre = finite(m)[:, None]
    weights = ()
    for c in tl.static_range(C):
        weights += (exp_flush(chunks[c] - centre),)
    return m, sum_row(weights, C, False)


@triton.jit
def fold_leaves(m, s, P: tl.constexpr, LOGSUMEXP: tl.constexpr):
    """The row's maximum [1] and sum [1] from its leaves' m, s [1, P] (-Inf and 0 past the last)."""
    top = tl.max(m, axis=1)
    if LOGSUMEXP:
        top = finite(top)
    return top, fold_pairs(s * exp_flush(m - top[:, None]), P)


@triton.jit
def load_leaves(maxima, sums, row, leaves, P: tl.constexpr):
    """The pairs of a row's leaves, [1, P] each."""
    j = tl.arange(0, P)[None, :]
    at = row * leaves + j
    here = j < leaves
    return tl.load(maxima + at, here, float("-inf")), tl.load(sums + at, here, 0.0)


@triton.jit
def tile_kernel(
    x, y, rows, x_stride,
    N: tl.constexpr, W: tl.constexpr, C: tl.constexpr, R: tl.constexpr, LOG: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Both softmaxes of R rows of one leaf each."""
    begin(PDL)
    row = tl.program_id(0) * R + tl.arange(0, R)
    inside = row < rows
    row = row.to(tl.int64)
    chunks = load_chunks(x, row * x_stride, inside, 0, 1, N, float("-inf"), C, W)
    m = max_chunks(chunks, C)[:, None]
    weights = ()
    for c in tl.static_range(C):
        weights += (exp_of_negative(chunks[c] - m),)
    s = sum_row(weights, C, False)
    log_s = log(s)[:, None]
    inverse = tl.div_rn(tl.full([R], 1.0, tl.float32), s)[:, None]
    for c in tl.static_range(C):
        k = c * W + tl.arange(0, W)
        t = chunks[c] - m - log_s if LOG else weights[c] * inverse
        at = y + row[:, None] * N + k[None, :]
        tl.store(at, t.to(y.dtype.element_ty), inside[:, None] & (k < N)[None, :])


@triton.jit
def pair_kernel(
    x, maxima, sums, n, x_stride, leaves, W: tl.constexpr, C: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """The maximum and the sum of one leaf of one row."""
    begin(PDL)
    row = (tl.program_id(0) // leaves).to(tl.int64)
    leaf = tl.program_id(0) % leaves
    start = row * x_stride + tl.zeros([1], tl.int64)
    chunks = load_chunks(x, start, start == start, leaf * (C * W), 1, n, float("-inf"), C, W)
    m, s = leaf_pair(chunks, C)
    at = row * leaves + leaf + tl.arange(0, 1)
    tl.store(maxima + at, m)
    tl.store(sums + at, s)


@triton.jit
def write_kernel(
    x, maxima, sums, y, n, x_stride, leaves,
    W: tl.constexpr, C: tl.constexpr, P: tl.constexpr, LOG: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Both softmaxes of one leaf, once the pairs of all leaves of its row are known."""
    begin(PDL)
    row = (tl.program_id(0) // leaves).to(tl.int64)
    first = tl.program_id(0) % leaves * (C * W)
    start = row * x_stride + tl.zeros([1], tl.int64)
    chunks = load_chunks(x, start, start == start, first, 1, n, 0.0, C, W)
    maxima_of_row, sums_of_row = load_leaves(maxima, sums, row, leaves, P)
    m, s = fold_leaves(maxima_of_row, sums_of_row, P, False)
    log_s = log(s)[:, None]
    inverse = tl.div_rn(tl.full([1], 1.0, tl.float32), s)[:, None]
    for c in tl.static_range(C):
        k = first + c * W + tl.arange(0, W)
        d = chunks[c] - m[:, None]
        t = d - log_s if LOG else exp_of_negative(d) * inverse
        tl.store(y + (row * n + k)[None, :], t.to(y.dtype.element_ty), (k < n)[None, :])


@triton.jit(do_not_specialize_on_alignment=["ids"])  # they may be a column of one row
def number_kernel(
    x, maxima, sums, ids, y, n, x_stride, leaves,
    P: tl.constexpr, LOGSUMEXP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """logsumexp of one row, or the log-probability of its token (NaN for no token of the row)."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    maxima_of_row, sums_of_row = load_leaves(maxima, sums, row, leaves, P)
    m, s = fold_leaves(maxima_of_row, sums_of_row, P, LOGSUMEXP)
    if LOGSUMEXP:
        t = log(s) + m
    else:
        token = tl.load(ids + row)
        known = (token >= 0) & (token < n) & (s == s)
        t = tl.load(x + row * x_stride + token + tl.arange(0, 1), known, float("nan"))
        t = t.to(tl.float32) - m - log(s)
    tl.store(y + row + tl.arange(0, 1), t.to(y.dtype.element_ty))


def softmax(
    x: torch.Tensor, dtype: torch.dtype, schedule: RowSchedule, *, log: bool
) -> torch.Tensor:
    """Softmax, or its logarithm, of every row of `x` [M, n], the last axis contiguous."""
    rows, n = x.shape
    y = torch.empty((rows, n), dtype=dtype, device=x.device)
    if not rows or not n:
        return y
    width, leaves = width_of(n), leaves_of(n)
    chunks = cdiv(min(n, LEAF), width)
    parts = power_above(leaves)
    if leaves == 1:
        programs = cdiv(rows, schedule.rows)
        pdl = overlaps(x, programs)
        launch(
            tile_kernel, (programs,), x, y, rows, x.stride(0),
            N=n, W=width, C=chunks, R=schedule.rows, LOG=log, PDL=pdl,
            num_warps=schedule.num_warps, pdl=pdl,
        )  # fmt: skip
    else:
        maxima, sums = _pairs(x, schedule.num_warps)
        pdl = overlaps(x, rows * leaves)
        launch(
            write_kernel, (rows * leaves,), x, maxima, sums, y, n, x.stride(0), leaves,
            W=width, C=chunks, P=parts, LOG=log, PDL=pdl,
            num_warps=schedule.num_warps, pdl=pdl,
        )  # fmt: skip
    return y


def row_numbers(
    x: torch.Tensor, ids: torch.Tensor | None, dtype: torch.dtype, schedule: RowSchedule
) -> torch.Tensor:
    """[M]: logsumexp of every row of `x` [M, n], or the log-probabilities of `ids` [M].

    The last axis of `x` is contiguous; a token that is none of the row's n gives NaN.
    """
    rows, n = x.shape
    y = torch.empty(rows, dtype=dtype, device=x.device)
    if not rows:
        return y
    leaves = leaves_of(n)
    maxima, sums = _pairs(x, schedule.num_warps)
    pdl = overlaps(x, rows)
    launch(
        number_kernel, (rows,), x, maxima, sums, y if ids is None else ids, y, n, x.stride(0),
        leaves, P=power_above(leaves), LOGSUMEXP=ids is None, PDL=pdl, num_warps=1,
        pdl=pdl,
    )  # fmt: skip
    return y


def _pairs(x: torch.Tensor, num_warps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The maxima and the sums of all leaves, M * leaves each, and a few that nobody writes."""
    rows, n = x.shape
    width, leaves = width_of(n), leaves_of(n)
    if leaves > MOST_LEAVES:
        raise ShapeError(
            f"rows of {n} elements are longer than the {MOST_LEAVES * LEAF} of softmax"
        )
    # Both aligned, whatever M is: another alignment would be another compiled kernel.
    maxima, sums = torch.empty(
        (2, 4 * cdiv(rows * leaves, 4)), dtype=torch.float32, device=x.device
    )
    pdl = overlaps(x, rows * leaves)
    launch(
        pair_kernel, (rows * leaves,), x, maxima, sums, n, x.stride(0), leaves,
        W=width, C=cdiv(min(n, LEAF), width), PDL=pdl, num_warps=num_warps,
        pdl=pdl,
    )  # fmt: skip
    return maxima, sums
