"""Numbers as integers with the order of ``torch.sort``; with an index, no two of them are equal.

Integer maxima, counts and sums do not depend on the order in which they are taken, so selection by
these keys has one answer whatever the launch looks like.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Below every key of a value with an index.
LOWEST = tl.constexpr(-(2**63))
_LARGEST_INDEX = tl.constexpr(2**31 - 1)


@triton.jit
def float_key(x):
    """fp32 to int32: -0 equals +0, every NaN equals every other and is above +Inf."""
    word = x.to(tl.int32, bitcast=True)
    key = word ^ ((word >> 31) & 0x7FFFFFFF)
    return tl.where(x == 0, 0, tl.where(x != x, 0x7FFFFFFF, key))


@triton.jit
def key_float(key):
    """The number of a key; NaN's is the quiet NaN whose payload is all ones."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def with_index(key, index):
    """int32 key and index to int64: the larger the key, then the lower the index, the larger."""
    return (key.to(tl.int64) << 32) + (_LARGEST_INDEX - index)


@triton.jit
def index_of(packed):
    """The index in a key of `with_index`, int32."""
    return _LARGEST_INDEX - (packed & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def key_of(packed):
    """The int32 key in a key of `with_index`."""
    return (packed >> 32).to(tl.int32)
