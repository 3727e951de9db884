"""Where the keys of a sequence are, and which of them a row sees: dense, packed or paged.

Lengths, offsets and tables are read from device memory, so that a captured graph serves every
length. Pages: Kwon et al., PagedAttention, 2023.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton.attention.softmax import STEP
from samebits.engines.triton.functions import opaque

#: Parameters whose values (1, multiples of 16) need no kernels of their own.
COUNTS = [
    "q_start", "q_len", "kv_len", "batch", "kv_heads", "q_heads", "tiles", "splits", "total",
    "longest", "leaves", "window", "leaf_keys", "table_stride", "slb", "slh", "slt",
]  # fmt: skip
#: Parameters that are read number by number, wherever in memory a step's requests begin.
LISTS = ["cu_q", "cu_k", "kv_lens", "table", "starts"]


@triton.jit
def sequence(b, cu_q, cu_k, kv_lens, starts, q_len, kv_len, q_start, KEYS: tl.constexpr):
    """First row in q, rows, first row in k, keys, and position of the first row of sequence b."""
    q_first = 0
    k_first = 0
    if KEYS != "dense":
        q_first = tl.load(cu_q + b).to(tl.int32)
        q_len = tl.load(cu_q + b + 1).to(tl.int32) - q_first
    if KEYS == "varlen":
        k_first = tl.load(cu_k + b).to(tl.int32)
        kv_len = tl.load(cu_k + b + 1).to(tl.int32) - k_first
    if KEYS == "paged":
        kv_len = tl.load(kv_lens + b).to(tl.int32)
    if starts is not None:
        q_start = tl.load(starts + b).to(tl.int32)
    elif KEYS != "dense":
        q_start = kv_len - q_len
    return q_first, q_len, k_first, kv_len, q_start


@triton.jit
def key_range(first, last, kv_len, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """The keys [lo, hi) that some of the positions first ... last may see."""
    lo = 0
    hi = kv_len
    if CAUSAL:
        hi = tl.minimum(hi, last + 1)
    if WINDOW:
        lo = tl.maximum(lo, first - window + 1)
        hi = tl.minimum(hi, last + window)
    return lo, tl.maximum(hi, lo)


@triton.jit
def pages_of(table, start, hi, PAGE: tl.constexpr):
    """The pages of a step's keys: one, or one for each key where a page is smaller than a step."""
    blocks = 0
    if PAGE != 0:
        at = start
        if PAGE % STEP.value != 0:
            at = start + tl.arange(0, STEP)
        blocks = tl.load(table + at // PAGE, mask=at < hi, other=0)
    return blocks


@triton.jit
def _rows(start, blocks, page_stride, row_stride, PAGE: tl.constexpr):
    """Offsets of a step's rows of K or V, [STEP] int64."""
    lanes = tl.arange(0, STEP)
    if PAGE == 0:
        rows = tl.cast(start, tl.int64) * row_stride + lanes * row_stride
    elif PAGE % STEP.value == 0:
        first = tl.cast(blocks, tl.int64) * page_stride
        rows = first + tl.cast(start % PAGE, tl.int64) * row_stride + lanes * row_stride
    else:
        rows = tl.cast(blocks, tl.int64) * page_stride + (start + lanes) % PAGE * row_stride
    return rows


@triton.jit
def tile(
    x, start, blocks, page_stride, row_stride, lo, hi,
    BLOCK: tl.constexpr, D, PAGE: tl.constexpr, PARTLY: tl.constexpr,
):  # fmt: skip
    """A step's rows of K or V, [STEP, BLOCK]: zeros outside the keys lo ... hi and columns of D."""
    keys = start + tl.arange(0, STEP)
    columns = tl.arange(0, BLOCK)[None, :]
    at = x + _rows(start, blocks, page_stride, row_stride, PAGE)[:, None] + columns
    if PARTLY:
        there = ((keys >= lo) & (keys < hi))[:, None]
        tile = tl.load(at, mask=there & (columns < D), other=0.0)
    elif BLOCK == D:
        tile = tl.load(at)
    else:
        tile = tl.load(at, mask=columns < D, other=0.0)
    return tile


@triton.jit
def widened(x, dtype: tl.constexpr):
    """A tile of keys or values in the type of the queries."""
    if x.dtype == dtype:
        return x
    return opaque(x.to(dtype))


@triton.jit
def seen_keys(position, keys, kv_len, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Which keys [N] the rows at `position` [M] see by their place alone."""
    seen = (keys < kv_len)[None, :] & (position >= 0)[:, None]
    if CAUSAL:
        seen = seen & (keys[None, :] <= position[:, None])
    if WINDOW:
        apart = position[:, None] - keys[None, :]
        seen = seen & (apart < window) & (apart > -window)
    return seen
