"""Selection on the GPU: the k best of each row, the extreme of each row; ties to the lowest index.

A radix select counts keys digit by digit from the top until the k-th best key is known; what lies
above it is taken, and of its equals the first ones. Counts are integers: nothing here depends on
the order in which threads arrive.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch
from samebits.engines.triton.order.keys import (
    LOWEST,
    float_key,
    index_of,
    is_nan,
    order_key,
    with_index,
)

#: Rows and chunks of rows that fill the chip.
_PROGRAMS = 264
#: The most winners that are sorted inside the kernel.
_SORTED_INSIDE = 2048


@triton.jit
def load_key(x_row, at, n, divisor, LARGEST: tl.constexpr, DIVIDED: tl.constexpr):
    """int32 key of which the best value has the largest. Smallest first: NaN comes last.

    DIVIDED: the values are those of the row, as fp32, over `divisor`.
    """
    x = tl.load(x_row + at, at < n, other=0.0)
    if DIVIDED:
        x = x.to(tl.float32)
        x = tl.div_rn(x, tl.zeros_like(x) + divisor)
    key = float_key(x)
    return key if LARGEST else ~key


@triton.jit(do_not_specialize=["k"])
def topk_kernel(
    x, values, indices, packed, n, k, stride,
    LARGEST: tl.constexpr, SORT: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One row a program. packed [rows, k] int64 receives the winners, best first if SORT."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x + row * stride
    out = packed + row * k
    lane = tl.arange(0, BLOCK)
    cut, ties = kth_key(x_row, n, k, 1.0, LARGEST, False, BLOCK)
    taken = 0
    equal = 0
    for start in range(0, n, BLOCK):
        at = start + lane
        key = load_key(x_row, at, n, 1.0, LARGEST, False)
        same = ((key == cut) & (at < n)).to(tl.int32)
        rank = equal + tl.cumsum(same)
        won = (((key > cut) & (at < n)) | ((same != 0) & (rank <= ties))).to(tl.int32)
        place = taken + tl.cumsum(won) - 1
        tl.store(out + place, with_index(key, at), won != 0)
        taken += tl.sum(won)
        equal += tl.sum(same)
    if SORT:
        tl.debug_barrier()  # the winners were stored by other threads of this program
        slot = tl.arange(0, BLOCK_K)
        best = tl.sort(tl.load(out + slot, slot < k, other=LOWEST), descending=True)
        index = index_of(best)
        tl.store(indices + row * k + slot, index.to(tl.int64), slot < k)
        value = tl.load(x_row + index, slot < k, other=0.0)
        tl.store(values + row * k + slot, value, slot < k)


@triton.jit
def kth_key(
    x_row, n, k, divisor, LARGEST: tl.constexpr, DIVIDED: tl.constexpr, BLOCK: tl.constexpr
):
    """The k-th largest key of a row, and how many of its equals are among the k best."""
    BITS: tl.constexpr = 32 if DIVIDED else x_row.dtype.element_ty.primitive_bitwidth
    lane = tl.arange(0, BLOCK)
    digit = tl.arange(0, 256)
    prefix = 0  # the digits known so far, of keys moved up by half their range
    left = k
    for known in tl.static_range(0, BITS, 8):
        shift = BITS - 8 - known
        counts = tl.zeros([256], tl.int32)
        for start in range(0, n, BLOCK):
            at = start + lane
            key = load_key(x_row, at, n, divisor, LARGEST, DIVIDED).to(tl.int64)
            key += 2 ** (BITS - 1)
            same = (at < n) & ((key >> (shift + 8)) == prefix)
            counts += tl.histogram(((key >> shift) & 255).to(tl.int32), 256, mask=same)
        above = tl.sum(counts) - tl.cumsum(counts)
        here = (above < left) & (above + counts >= left)
        prefix = prefix * 256 + tl.sum(tl.where(here, digit, 0)).to(tl.int64)
        left -= tl.sum(tl.where(here, above, 0))
    return (prefix - 2 ** (BITS - 1)).to(tl.int32), left


def topk(x: torch.Tensor, k: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The k extreme values of each row, best first, ties to the lowest index.

    Args:
        x: [rows, n] float32, bfloat16 or float16, unit stride along n, 1 <= k <= n < 2**31.

    Returns:
        values [rows, k] in x's dtype and indices [rows, k] int64.
    """
    rows, n = x.shape
    values = torch.empty(rows, k, dtype=x.dtype, device=x.device)
    indices = torch.empty(rows, k, dtype=torch.int64, device=x.device)
    packed = torch.empty(rows, k, dtype=torch.int64, device=x.device)
    inside = k <= _SORTED_INSIDE
    launch(
        topk_kernel, (rows,), x, values, indices, packed, n, k, x.stride(0),
        num_warps=8, LARGEST=largest, SORT=inside, BLOCK=min(4096, _block(n)),
        BLOCK_K=_block(k) if inside else 1,
    )  # fmt: skip
    if not inside:
        packed = packed.sort(dim=-1, descending=True).values
        indices = (2**31 - 1) - (packed & 0xFFFFFFFF)
        values = x.gather(1, indices)
    return values, indices


@triton.jit
def extreme_kernel(
    x, keys, places, n, chunk, stride, LARGEST: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Best key and its lowest index in one chunk of a row: keys, places [rows, chunks] int64."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    best = tl.full([BLOCK], LOWEST, tl.int64)
    place = tl.zeros([BLOCK], tl.int64)
    for start in range(part * chunk, min(n, (part + 1) * chunk), BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * stride + at, at < n, other=0)
        key = order_key(value)
        if not LARGEST:
            key = tl.where(is_nan(value), key, ~key)
        # LOWEST is also the key of the smallest integer: the first element replaces it unasked.
        better = (at < n) & ((key > best) | (start == part * chunk))
        best = tl.where(better, key, best)
        place = tl.where(better, at.to(tl.int64), place)
    valid = (part * chunk + tl.arange(0, BLOCK)) < n
    _store_best(best, place, valid, keys, places, row * tl.num_programs(1) + part)


@triton.jit(do_not_specialize=["chunks"])
def fold_kernel(keys, places, indices, chunks, BLOCK: tl.constexpr):
    """The best of a row's chunks."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    best = tl.load(keys + row * chunks + at, at < chunks, other=LOWEST)
    place = tl.load(places + row * chunks + at, at < chunks, other=0)
    _store_best(best, place, at < chunks, keys, indices, row)


@triton.jit
def _store_best(best, place, valid, keys, places, to):
    top = tl.max(tl.where(valid, best, LOWEST))
    far: tl.constexpr = 2**63 - 1
    tl.store(places + to, tl.min(tl.where(valid & (best == top), place, far)))
    tl.store(keys + to, top)


def argextreme(x: torch.Tensor, largest: bool) -> torch.Tensor:
    """Lowest index of the largest (or smallest) value of each row; NaN wins.

    Args:
        x: [rows, n] of any real dtype but bool, unit stride along n, 1 <= n.

    Returns:
        [rows] int64.
    """
    rows, n = x.shape
    block = min(4096, _block(n))
    blocks = triton.cdiv(n, block)
    chunks = max(1, min(blocks, 1024, _PROGRAMS // max(rows, 1)))
    chunk = triton.cdiv(blocks, chunks) * block
    chunks = triton.cdiv(n, chunk)
    keys = torch.empty(rows, chunks, dtype=torch.int64, device=x.device)
    places = torch.empty_like(keys)
    launch(
        extreme_kernel, (rows, chunks), x, keys, places, n, chunk, x.stride(0),
        num_warps=8 if block >= 2048 else 4, LARGEST=largest, BLOCK=block,
    )  # fmt: skip
    if chunks == 1:
        return places[:, 0]
    indices = torch.empty(rows, dtype=torch.int64, device=x.device)
    launch(fold_kernel, (rows,), keys, places, indices, chunks, BLOCK=_block(chunks))
    return indices


@triton.jit
def keys_kernel(x, keys, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = float_key(tl.load(x + at, at < n, other=0.0))
    tl.store(keys + at, key, at < n)


def sort_keys(x: torch.Tensor) -> torch.Tensor:
    """Integers with the order of the floats in `x` (contiguous): int64 for fp64, else int32."""
    kind = torch.int64 if x.dtype is torch.float64 else torch.int32
    keys = torch.empty(x.shape, dtype=kind, device=x.device)
    launch(keys_kernel, (triton.cdiv(x.numel(), 1024),), x, keys, x.numel(), BLOCK=1024)
    return keys


def _block(n: int) -> int:
    return max(128, int(triton.next_power_of_2(n)))
