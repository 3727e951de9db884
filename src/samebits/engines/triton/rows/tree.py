"""The row tree on a GPU: segment(8192) of lanes(1024, neighbours) folded pairwise.

A leaf is held as up to eight chunks of W lanes, W = 1024 or the row's length rounded up to a power
of two. Additions of chunks are the lanes' chains. A fold reduces axes of length two only: one
addition each, so no layout, warp count or compiler can choose an order. Sums start from +0 and
therefore are never -0: adding +0 for what is not there changes nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.engines.triton.rows.schedule import LANES, LEAF

_CHUNKS = tl.constexpr(LEAF // LANES)


def overlaps(x: torch.Tensor, programs: int) -> bool:
    """Whether a kernel should `begin` while the one before it ends.

    With more programs than that the wait of each costs more than the one start that it hides: a
    gate of 57,000 programs took 94 us instead of 83, a norm of 4096 took 17 instead of 19.
    """
    return x.is_cuda and programs <= 8192


@triton.jit
def begin(PDL: tl.constexpr):
    """Every kernel's first line. With PDL its programs take their places while the kernel before
    it ends, wait for that end before they touch memory, and let the next kernel do the same."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def fold_pairs(x, W: tl.constexpr):
    """[R, W] -> [R]: x[2i] + x[2i + 1], and so on down to one."""
    if W > 1:
        pairs = tl.reshape(x, [x.shape[0], W // 2, 2])
        total = fold_pairs(tl.sum(pairs, axis=2), W // 2)
    else:
        total = tl.reshape(x, [x.shape[0]])
    return total


@triton.jit
def sum_chunks(chunks, FIRST: tl.constexpr, LAST: tl.constexpr, SQUARES: tl.constexpr):
    """S (or Q) of the leaf that chunks FIRST to LAST - 1, each [R, W], hold."""
    acc = tl.zeros_like(chunks[FIRST])
    for c in tl.static_range(FIRST, LAST):
        if SQUARES:
            acc = tl.fma(chunks[c], chunks[c], acc)
        else:
            acc += chunks[c]
    return fold_pairs(acc, acc.shape[1])


@triton.jit
def sum_row(chunks, C: tl.constexpr, SQUARES: tl.constexpr):
    """S (or Q) of rows of one or two leaves: C <= 16 chunks."""
    if C > _CHUNKS:
        total = sum_chunks(chunks, 0, _CHUNKS, SQUARES) + sum_chunks(chunks, _CHUNKS, C, SQUARES)
    else:
        total = sum_chunks(chunks, 0, C, SQUARES)
    return total


@triton.jit
def row_starts(row, inner, outer_stride, inner_stride):
    """Where rows o * inner + i begin: o and i times their strides, in 64 bits."""
    outer = (row // inner).to(tl.int64)
    return outer * outer_stride + (row - outer.to(tl.int32) * inner).to(tl.int64) * inner_stride


@triton.jit
def load_chunks(x, starts, inside, FIRST, STEP, n, other, C: tl.constexpr, W: tl.constexpr):
    """C chunks of W elements from element FIRST of each row on, as fp32.

    Args:
        x: pointer; starts: [R] int64, where rows begin; STEP: distance of a row's elements.
        inside: [R] rows that exist; n: elements in a row.
        other: what stands for an element that does not exist.
    """
    chunks = ()
    for c in tl.static_range(C):
        k = FIRST + c * W + tl.arange(0, W)
        here = inside[:, None] & (k < n)[None, :]
        at = x + starts[:, None] + (k * STEP)[None, :]
        chunks += (tl.load(at, here, other).to(tl.float32),)
    return chunks


@triton.jit
def max_chunks(chunks, C: tl.constexpr):
    """The largest element of each row, +0 for -0; a NaN is passed over."""
    top = chunks[0]
    for c in tl.static_range(1, C):
        top = tl.maximum(top, chunks[c])
    return tl.max(top, axis=1) + 0.0
