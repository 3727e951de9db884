"""Reductions of rows to numbers: sums, means, variances, norms, products."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch
from samebits.engines.triton.rows.schedule import (
    LANES,
    LEAF,
    MOST_LEAVES,
    cdiv,
    leaves_of,
    width_of,
)
from samebits.engines.triton.rows.tree import begin, overlaps, row_starts


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def meet(a, b, MEET: tl.constexpr):
    """How two partial results meet."""
    if MEET == "add":
        y = add(a, b)
    elif MEET == "multiply":
        y = multiply(a, b)
    elif MEET == "larger":
        y = larger(a, b)
    else:
        y = smaller(a, b)
    return y


@triton.jit
def fold(x, W: tl.constexpr, MEET: tl.constexpr):
    """[R, W] -> [R]: neighbours first, one operation an axis of length two."""
    if W > 1:
        pairs = tl.reshape(x, [x.shape[0], W // 2, 2])
        if MEET == "add":
            halved = tl.reduce(pairs, 2, add)
        elif MEET == "multiply":
            halved = tl.reduce(pairs, 2, multiply)
        elif MEET == "larger":
            halved = tl.reduce(pairs, 2, larger)
        else:
            halved = tl.reduce(pairs, 2, smaller)
        total = fold(halved, W // 2, MEET)
    else:
        total = tl.reshape(x, [x.shape[0]])
    return total


@triton.jit
def finished(total, divisor, DONE: tl.constexpr):
    """What becomes of the total."""
    if DONE == "mean":
        total = tl.div_rn(total, tl.zeros_like(total) + divisor)
    elif DONE == "root":
        total = tl.sqrt_rn(total)
    elif DONE == "mean_root":
        total = tl.sqrt_rn(tl.div_rn(total, tl.zeros_like(total) + divisor))
    return total


#: kind -> (what becomes of an element, how two values meet, its identity, and of the total)
KINDS: dict[str, tuple[str, str, float, str]] = {
    "sum": ("x", "add", 0.0, "total"),
    "mean": ("x", "add", 0.0, "mean"),
    "nansum": ("number", "add", 0.0, "total"),
    "prod": ("x", "multiply", 1.0, "total"),
    "norm0": ("counted", "add", 0.0, "total"),
    "norm1": ("magnitude", "add", 0.0, "total"),
    "norm2": ("square", "add", 0.0, "root"),
    "norm_inf": ("magnitude", "larger", 0.0, "total"),
    "norm_neg_inf": ("magnitude", "smaller", float("inf"), "total"),
    "mean_square": ("square", "add", 0.0, "mean"),
    "var": ("square", "add", 0.0, "mean"),
    "std": ("square", "add", 0.0, "mean_root"),
}


@triton.jit
def leaf_kernel(
    x, centre, y, rows, n, inner, outer_stride, inner_stride, stride, divisor, leaves, identity,
    W: tl.constexpr, C: tl.constexpr, R: tl.constexpr, ELEMENT: tl.constexpr, MEET: tl.constexpr,
    DONE: tl.constexpr, CENTRED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One leaf of R rows. Element k of row o * inner + i lies at o, i, k times their strides."""
    begin(PDL)
    leaf = tl.program_id(0) % leaves
    row = tl.program_id(0) // leaves * R + tl.arange(0, R)
    inside = row < rows
    start = row_starts(row, inner, outer_stride, inner_stride)
    if CENTRED:
        centres = tl.load(centre + row, inside, 0.0)
    acc = tl.full([R, W], 0.0, tl.float32) + identity
    for c in tl.static_range(C):
        k = leaf.to(tl.int64) * (C * W) + c * W + tl.arange(0, W)
        here = inside[:, None] & (k < n)[None, :]
        t = tl.load(x + start[:, None] + (k * stride)[None, :], here, 0.0).to(tl.float32)
        if CENTRED:
            t = t - centres[:, None]
        if ELEMENT == "number":
            t = tl.where(t == t, t, 0.0)
        elif ELEMENT == "counted":
            t = tl.where(t == 0.0, 0.0, 1.0)
        elif ELEMENT == "magnitude":
            t = tl.abs(t)
        if ELEMENT == "square":
            t = tl.where(here, t, 0.0)
            acc = tl.fma(t, t, acc)
        else:
            acc = meet(acc, tl.where(here, t, identity), MEET)
    total = finished(fold(acc, W, MEET), divisor, DONE)
    tl.store(y + row.to(tl.int64) * leaves + leaf, total.to(y.dtype.element_ty), inside)


@triton.jit
def fold_kernel(
    parts, y, n, parts_stride, y_stride, divisor, identity,
    W: tl.constexpr, MEET: tl.constexpr, DONE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Folds W leaves of a row pairwise."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    k = group * W + tl.arange(0, W)
    t = tl.load(parts + row * parts_stride + k, k < n, identity)
    total = finished(fold(t[None, :], W, MEET), divisor, DONE)
    tl.store(y + row * y_stride + group + tl.arange(0, 1), total.to(y.dtype.element_ty))


def reduce_rows(
    kind: str,
    x: torch.Tensor,
    dtype: torch.dtype,
    *,
    mean: torch.Tensor | None = None,
    divisor: float | None = None,
) -> torch.Tensor:
    """Reduces the last axis of `x`.

    Args:
        kind: one of `KINDS`; "var", "std" and "mean_square" are of x - mean, if `mean` is given.
        x: [rows, n] or [outer, inner, n], any strides; fp32, bf16 or fp16.
        dtype: of the result.
        mean: fp32, one a row.
        divisor: what a total is divided by; n if None.

    Returns:
        [rows] or [outer, inner], of `dtype`.
    """
    element, joined, identity, done = KINDS[kind]
    lead, n = x.shape[:-1], x.shape[-1]
    inner = lead[-1] if len(lead) == 2 else 1
    rows = lead.numel()
    y = torch.empty(lead, dtype=dtype, device=x.device)
    if not rows:
        return y
    divisor = float(n if divisor is None else divisor)
    width, leaves = width_of(n), leaves_of(n)
    columns = inner > 1 and x.stride(-1) != 1
    share = min(16, 16384 // width) if columns else max(1, min(LANES // width, 16))
    while share > 1 and share >= 2 * rows:
        share //= 2
    parts = y if leaves == 1 else torch.empty((rows, leaves), dtype=torch.float32, device=x.device)
    programs = cdiv(rows, share) * leaves
    pdl = overlaps(x, programs)
    launch(
        leaf_kernel, (programs,),
        x, x if mean is None else mean, parts, rows, n, inner, x.stride(0),
        x.stride(1) if len(lead) == 2 else 0, x.stride(-1), divisor, leaves, identity,
        W=width, C=cdiv(min(n, LEAF), width) if n else 1, R=share, ELEMENT=element,
        MEET=joined, DONE=done if leaves == 1 else "total", CENTRED=mean is not None,
        PDL=pdl, num_warps=8 if share * width >= 4096 else 4, pdl=pdl,
    )  # fmt: skip
    while leaves > 1:
        count = min(MOST_LEAVES, 1 << (leaves - 1).bit_length())
        groups = cdiv(leaves, count)
        folded = y if groups == 1 else parts.new_empty((rows, groups))
        pdl = overlaps(x, rows * groups)
        launch(
            fold_kernel, (rows, groups),
            parts, folded, leaves, leaves, groups, divisor, identity,
            W=count, MEET=joined, DONE=done if groups == 1 else "total",
            PDL=pdl, num_warps=4, pdl=pdl,
        )  # fmt: skip
        parts, leaves = folded, groups
    return y
