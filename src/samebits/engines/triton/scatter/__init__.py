"""Adding into scattered places on the GPU, in the order of the sources and without atomics.

Sources are sorted by place, stably. The first source of a place walks its stretch one by one, so
every place takes its sources in ascending order, whoever else is there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch

#: Sources whose loads are in flight together.
_UNROLL = 8


@triton.jit
def fold_stretches_kernel(
    dst, src, places, order, alpha, n, inner, stride,
    COMBINE: tl.constexpr, ALPHA: tl.constexpr,
    UNROLL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sources ROWS x program of the sorted list; those that begin a stretch fold it into dst.

    Args:
        dst: [-1, inner] accumulators, fp32 or fp64.
        src: [n, inner], unit stride along inner, `stride` along n.
        places: [n] int64, ascending; negative ones are skipped. order: [n] int64, their sources.
        alpha: [1] of dst's type, factor of sources if ALPHA.
    """
    first = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (column < inner)[None, :]
    place = tl.load(places + first, first < n, other=-1)
    before = tl.load(places + first - 1, (first > 0) & (first < n), other=-1)
    begins = (place >= 0) & (place != before)
    to = dst + place[:, None] * inner + column[None, :]
    mine = begins[:, None] & inside
    acc = tl.load(to, mine, other=0.0)
    step = 0
    going = tl.max(begins.to(tl.int32))
    while going != 0:
        for ahead in tl.static_range(UNROLL):
            at = first + step + ahead
            same = begins & (at < n) & (tl.load(places + at, at < n, other=-1) == place)
            source = tl.load(order + at, same, other=0)
            value = tl.load(src + source[:, None] * stride + column[None, :],
                            same[:, None] & inside, other=0.0).to(acc.dtype)  # fmt: skip
            if ALPHA:
                value *= tl.load(alpha)
            acc = tl.where(same[:, None], _combine(acc, value, COMBINE), acc)
            begins = same
        step += UNROLL
        going = tl.max(begins.to(tl.int32))
    tl.store(to, acc, mine)


@triton.jit
def _combine(acc, value, COMBINE: tl.constexpr):
    if COMBINE == "add":
        folded = acc + value
    elif COMBINE == "mul":
        folded = acc * value
    elif COMBINE == "amax":
        folded = tl.where((acc != acc) | (acc > value), acc, value)
    else:
        folded = tl.where((acc != acc) | (acc < value), acc, value)
    return folded


@triton.jit
def narrow_kernel(acc, out, n, NAN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(acc + at, at < n, other=0.0)
    words: tl.constexpr = tl.int32 if out.dtype.element_ty.primitive_bitwidth == 32 else tl.int16
    word = value.to(out.dtype.element_ty).to(words, bitcast=True)
    word = tl.where(value != value, NAN, word.to(tl.int32)).to(words)
    tl.store(out + at, word.to(out.dtype.element_ty, bitcast=True), at < n)


def scatter(
    dst: torch.Tensor,
    positions: torch.Tensor,
    src: torch.Tensor,
    combine: str = "add",
    alpha: float = 1.0,
) -> None:
    """``dst[positions[i]] = combine(dst[positions[i]], alpha * src[i])`` for i ascending, in place.

    Args:
        dst: [places, inner] contiguous accumulators, float32 (or float64 with a float64 `src`).
        positions: [n] int64, contiguous; negative positions are skipped.
        src: [n, inner] with unit stride along `inner`; a stride of 0 along n repeats one row.
        combine: "add", "mul", "amax" or "amin".
    """
    n, inner = src.shape
    if not n or not inner:
        return
    places, order = torch.sort(positions, stable=True)
    columns = min(512, triton.next_power_of_2(inner))
    rows = max(1, 128 // columns)
    factor = None if alpha == 1 else torch.full((1,), alpha, dtype=dst.dtype, device=dst.device)
    launch(
        fold_stretches_kernel, (triton.cdiv(n, rows), triton.cdiv(inner, columns)),
        dst, src, places, order, factor, n, inner, src.stride(0),
        num_warps=4, COMBINE=combine, ALPHA=factor is not None, UNROLL=_UNROLL, ROWS=rows,
        COLUMNS=columns,
    )  # fmt: skip


#: The NaN of every result, as on the CPU.
_NAN = {torch.float32: 0x7FC00000, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}


def narrow(acc: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`acc` (float32, contiguous) rounded once to `dtype`; every NaN becomes the canonical one."""
    out = torch.empty(acc.shape, dtype=dtype, device=acc.device)
    launch(
        narrow_kernel, (triton.cdiv(acc.numel(), 1024),), acc, out, acc.numel(),
        NAN=_NAN[dtype], BLOCK=1024,
    )  # fmt: skip
    return out
