"""Digests of the paths that kernels take, and seals of partial results: see `contract.path`.

A path is followed by scalars beside the sums. A partial result that goes through memory takes a
seal along: the sum of the integer views of its fp32 numbers, exact and in any order the same.
Whoever folds it sums again, and breaks the seal: nothing is folded twice, and nothing stale.

Triton keeps a small tensor in several warps at once. A place that is loaded and then overwritten
needs a barrier in between, or the second warp to come loads what the first has stored.

A ticket is read where a kernel begins: it may lie in DRAM, and no end of a kernel waits for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: `contract.path.FACTOR`.
FACTOR = tl.constexpr(0x9E3779B1)
#: Leaves whose words are folded side by side.
_BLOCK = tl.constexpr(128)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.constexpr_function
def _mixed(x):
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


@triton.jit
def leaf_word(begin, end):
    """The word of a leaf over [begin, end): uint32."""
    first: tl.constexpr = _mixed(1)
    return _mix(_mix(tl.cast(begin, tl.uint32) + first) + tl.cast(end, tl.uint32))


@triton.jit
def fold_word(digest, word):
    """The digest after the leaf `word` was added."""
    return digest * FACTOR + word


@triton.jit
def join(first, last, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """The digest of a sum of two sums of LEFT and RIGHT leaves, from 0 on; a leaf is its word."""
    if RIGHT > 1:
        last = _mix(last)
    return fold_word(first, last)


@triton.jit
def views(x):
    """The integer views of fp32 numbers, as int64: sums of them are exact."""
    return x.to(tl.int32, bitcast=True).to(tl.int64)


@triton.jit
def _word(ticket, at: tl.constexpr):
    """Where a word of the ticket at an address is."""
    return tl.cast(ticket, tl.pointer_type(tl.int32)) + at


@triton.jit
def expected_of(ticket):
    """The digest that the contract has, or its seed."""
    return tl.load(_word(ticket, 0)).to(tl.uint32, bitcast=True)


@triton.jit
def length_of(ticket):
    """Keys of a leaf of the contract's attention."""
    return tl.load(_word(ticket, 2))


@triton.jit
def judge(ticket, right):
    """Says so on the ticket if something is not right: `right` is a scalar or a vector."""
    wrong = _word(ticket, 1) + right.to(tl.int32) * 0
    tl.atomic_add(wrong, 1, mask=right == 0, sem="relaxed")


@triton.constexpr_function
def _square(bit):
    return pow(0x9E3779B1, 1 << bit, 1 << 32)


@triton.jit
def _powers(e):
    """FACTOR**e for exponents 0 ... 127."""
    power = tl.full(e.shape, 1, tl.uint32)
    for bit in tl.static_range(7):
        power = tl.where((e >> bit) & 1 != 0, power * _square(bit), power)
    return power


@triton.jit
def ascending(seed, lo, hi, length):
    """`contract.path.ascending`: the digest over keys [lo, hi) in leaves of `length`.

    Horner's rule for 128 leaves at a time.
    """
    digest = seed
    first = lo // length
    stop = tl.cdiv(hi, length)
    for block in range(first, stop, _BLOCK):
        at = block + tl.arange(0, _BLOCK)
        last = tl.minimum(block + _BLOCK, stop)
        words = leaf_word(tl.maximum(at * length, lo), tl.minimum(at * length + length, hi))
        weighted = tl.where(at < last, words * _powers(tl.maximum(last - 1 - at, 0)), 0)
        shift = tl.sum(tl.where(at == block, _powers(tl.maximum(last - 1 - at, 0)), 0), axis=0)
        digest = digest * shift * FACTOR + tl.sum(weighted, axis=0)
    return digest
