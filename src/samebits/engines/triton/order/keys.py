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
def is_nan(x):
    """Whether a float is NaN; no integer is."""
    wide = x.to(tl.float32) if x.dtype.primitive_bitwidth == 16 and x.dtype.is_floating() else x
    return wide != wide


@triton.jit
def float_key(x):
    """fp32, bf16, fp16 to int32 (fp64 to int64): -0 equals +0, every NaN is above +Inf and equal.

    Keys of 16-bit types have 16 bits.
    """
    BITS: tl.constexpr = x.dtype.primitive_bitwidth
    LARGEST: tl.constexpr = 2 ** (BITS - 1) - 1
    if BITS == 64:
        word = x.to(tl.int64, bitcast=True)
        sign = word >> 63
    elif BITS == 32:
        word = x.to(tl.int32, bitcast=True)
        sign = word >> 31
    else:
        word = x.to(tl.int16, bitcast=True).to(tl.int32)
        sign = word >> 31
    key = word ^ (sign & LARGEST)
    return tl.where((word & LARGEST) == 0, 0, tl.where(is_nan(x), LARGEST, key))


@triton.jit
def key_number(key):
    """The fp32 number of an int32 key; +0 for both zeros."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def order_key(x):
    """`float_key` of a float, an integer itself: int64."""
    key = float_key(x) if x.dtype.is_floating() else x
    return key.to(tl.int64)


@triton.jit
def with_index(key, index):
    """int32 key and index to int64: the larger the key, then the lower the index, the larger."""
    return (key.to(tl.int64) << 32) + (_LARGEST_INDEX - index)


@triton.jit
def index_of(packed):
    """The index in a key of `with_index`, int32."""
    return _LARGEST_INDEX - (packed & 0xFFFFFFFF).to(tl.int32)
