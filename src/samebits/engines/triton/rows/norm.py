"""RMS norm and layer norm, with a residual added first if there is one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch
from samebits.engines.triton.rows.reduce import reduce_rows
from samebits.engines.triton.rows.schedule import LONGEST_TILE, RowSchedule, cdiv, width_of
from samebits.engines.triton.rows.tree import begin, load_chunks, overlaps, row_starts, sum_row


@triton.jit
def norm_tile_kernel(
    x, residual, weight, bias, y, total, rows, inner, x_outer, x_inner, residual_outer,
    residual_inner, eps,
    N: tl.constexpr, W: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
    CENTRED: tl.constexpr, RESIDUAL: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """R whole rows, held as C chunks of W elements; every input is read once, and at once.

    Row o * inner + i of x and residual begins at o and i times their strides.
    """
    begin(PDL)
    row = tl.program_id(0) * R + tl.arange(0, R)
    inside = row < rows
    starts = row_starts(row, inner, x_outer, x_inner)
    chunks = load_chunks(x, starts, inside, 0, 1, N, 0.0, C, W)
    if RESIDUAL:
        starts = row_starts(row, inner, residual_outer, residual_inner)
        added = load_chunks(residual, starts, inside, 0, 1, N, 0.0, C, W)
    weights = load_columns(weight, N, C, W, WEIGHT)
    biases = load_columns(bias, N, C, W, BIAS)
    row = row.to(tl.int64)
    if RESIDUAL:
        sums = ()
        for c in tl.static_range(C):
            k = c * W + tl.arange(0, W)
            t = (chunks[c] + added[c]).to(total.dtype.element_ty)
            tl.store(total + row[:, None] * N + k[None, :], t, inside[:, None] & (k < N)[None, :])
            sums += (t.to(tl.float32),)
        chunks = sums
    if CENTRED:
        mean = tl.div_rn(sum_row(chunks, C, False), tl.full([R], N, tl.float32))
        centred = ()
        for c in tl.static_range(C):
            k = c * W + tl.arange(0, W)
            centred += (tl.where((k < N)[None, :], chunks[c] - mean[:, None], 0.0),)
        chunks = centred
    squares = tl.div_rn(sum_row(chunks, C, True), tl.full([R], N, tl.float32))
    r = tl.div_rn(tl.full([R], 1.0, tl.float32), tl.sqrt_rn(squares + eps))
    for c in tl.static_range(C):
        k = c * W + tl.arange(0, W)
        t = affine(chunks[c] * r[:, None], weights[c], biases[c], WEIGHT, BIAS)
        at = y + row[:, None] * N + k[None, :]
        tl.store(at, t.to(y.dtype.element_ty), inside[:, None] & (k < N)[None, :])


@triton.jit
def load_columns(p, N: tl.constexpr, C: tl.constexpr, W: tl.constexpr, PRESENT: tl.constexpr):
    """C chunks of W parameters, of their own type; nothing where there is none."""
    chunks = ()
    for c in tl.static_range(C):
        k = c * W + tl.arange(0, W)
        if PRESENT:
            chunks += (tl.load(p + k, k < N, 0.0),)
        else:
            chunks += (0.0,)
    return chunks


@triton.jit
def affine(t, w, b, WEIGHT: tl.constexpr, BIAS: tl.constexpr):
    """fma(t, w, b), t * w, t + b or t, for t [R, W] and parameters [W]."""
    if WEIGHT:
        w = tl.broadcast_to(w.to(tl.float32)[None, :], t.shape)
    if BIAS:
        b = tl.broadcast_to(b.to(tl.float32)[None, :], t.shape)
    if WEIGHT and BIAS:
        t = tl.fma(t, w, b)
    elif WEIGHT:
        t = t * w
    elif BIAS:
        t = t + b
    return t


@triton.jit
def norm_apply_kernel(
    x, weight, bias, y, mean, squares, x_stride, eps, n,
    W: tl.constexpr, CENTRED: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """W columns of one row, whose mean and mean square are known."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * W + tl.arange(0, W)
    t = tl.load(x + row * x_stride + k, k < n, 0.0).to(tl.float32)
    if CENTRED:
        t = t - tl.load(mean + row)
    r = tl.div_rn(
        tl.full([1], 1.0, tl.float32), tl.sqrt_rn(tl.load(squares + row + tl.arange(0, 1)) + eps)
    )
    w = tl.load(weight + k, k < n, 0.0) if WEIGHT else 0.0
    b = tl.load(bias + k, k < n, 0.0) if BIAS else 0.0
    t = affine((t * r)[None, :], w, b, WEIGHT, BIAS)
    at = (y + row * n + k)[None, :]
    tl.store(at, t.to(y.dtype.element_ty), (k < n)[None, :])


def norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    schedule: RowSchedule,
    *,
    centred: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Layer norm (`centred`) or RMS norm of every row of `x`.

    Args:
        x, residual: [rows, n] or [outer, inner, n], alike, of one dtype, the last axis contiguous.
        weight, bias: [n], contiguous, any of the dtypes.

    Returns:
        The norm, contiguous, and x + residual rounded to x's dtype, which is what was normalised.
    """
    n = x.shape[-1]
    inner = 1 if x.dim() == 2 else x.shape[1]
    rows = x.shape[0] * inner
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not rows or not n:
        return y, None if residual is None else torch.empty_like(y)
    if n > LONGEST_TILE:
        return _long(x, residual, weight, bias, eps, y, centred)
    total = None if residual is None else torch.empty_like(y)
    share, width = schedule.rows, width_of(n)
    programs = cdiv(rows, share)
    pdl = overlaps(x, programs)
    launch(
        norm_tile_kernel, (programs,),
        x, x if residual is None else residual, x if weight is None else weight,
        x if bias is None else bias, y, y if total is None else total, rows, inner,
        x.stride(0), x.stride(-2), 0 if residual is None else residual.stride(0),
        0 if residual is None else residual.stride(-2), eps,
        N=n, W=width, C=cdiv(n, width), R=share, CENTRED=centred,
        RESIDUAL=residual is not None, WEIGHT=weight is not None, BIAS=bias is not None,
        PDL=pdl, num_warps=schedule.num_warps, pdl=pdl,
    )  # fmt: skip
    return y, total


def _long(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    y: torch.Tensor,
    centred: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows that do not fit into registers: their statistics first, then every element."""
    total = None if residual is None else torch.add(x, residual)
    x = (x if total is None else total).reshape(-1, x.shape[-1])
    rows, n = x.shape
    mean = reduce_rows("mean", x, torch.float32) if centred else None
    squares = reduce_rows("mean_square", x, torch.float32, mean=mean)
    blocks = cdiv(n, 2048)
    pdl = overlaps(x, rows * blocks)
    launch(
        norm_apply_kernel, (rows, blocks),
        x, x if weight is None else weight, x if bias is None else bias, y,
        squares if mean is None else mean, squares, x.stride(0), eps, n,
        W=2048, CENTRED=centred, WEIGHT=weight is not None, BIAS=bias is not None,
        PDL=pdl, num_warps=4, pdl=pdl,
    )  # fmt: skip
    return y, total
