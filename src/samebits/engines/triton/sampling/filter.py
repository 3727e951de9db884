"""Top-k, top-p and min-p of a row as one cut in the order of (value, index). One program a row."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton.functions import exp, log
from samebits.engines.triton.order.keys import (
    LOWEST,
    float_key,
    index_of,
    key_number,
    with_index,
)
from samebits.engines.triton.order.select import kth_key, load_key

#: Fixed point of probability masses: 40 bits after the point, so that their sums are exact.
SCALE = tl.constexpr(2.0**40)
#: Below the key of every number.
LOWEST_KEY = tl.constexpr(-(2**31))
_LAST = tl.constexpr(2**31 - 1)
#: exp(-30) * 2^40 is far below 1: no mass is left from here on down.
_NO_MASS = tl.constexpr(30.0)


@triton.jit
def mass_of(d):
    """Mass of a token at a distance d <= 0 from the maximum."""
    return (exp(d) * SCALE).to(tl.int64)


@triton.jit
def filter_kernel(
    logits, temperature, top_k, top_p, min_p, keys, lasts, lowests, tops, masses, room, n, stride,
    TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr, ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The cut of a row. A row whose maximum is not finite keeps everything.

    Usually a few tokens can be seen to contain all that is left: they are moved to `room` [rows,
    ROOM] int64 and sorted. Otherwise the cut is searched in the whole row.
    """
    row = tl.program_id(0).to(tl.int64)
    x = logits + row * stride
    heat = tl.load(temperature + row)
    heat = tl.where(heat > 0, heat, 1.0)
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], LOWEST_KEY, tl.int32)
    for start in range(0, n, BLOCK):
        own = load_key(x, start + lane, n, heat, True, True)
        best = tl.maximum(best, tl.where(start + lane < n, own, LOWEST_KEY))
    top_key = tl.max(best)
    top = key_number(top_key)
    finite = (top > float("-inf")) & (top < float("inf"))

    lowest = tl.full((), float("-inf"), tl.float32)
    if MIN_P:
        share = tl.load(min_p + row)
        lowest = tl.where(finite & (share > 0), tl.minimum(log(share), 0.0), lowest)
    k = tl.full((), 0, tl.int32)
    if TOP_K:
        k = tl.load(top_k + row)
        k = tl.where((k > 0) & (k < n) & finite, k, 0)
    p = tl.full((), 1.0, tl.float32)
    if TOP_P:
        p = tl.load(top_p + row)
        p = tl.where((p < 1) & finite, p, 1.0)

    total, counts = _survey(x, n, heat, top, lowest, TOP_K or TOP_P, BLOCK)
    key = tl.full((), LOWEST_KEY, tl.int32)
    last = tl.full((), _LAST, tl.int32)
    if (k > 0) | (p < 1):
        last_bin, few = _candidates(counts, total, k, p)
        if (few <= ROOM) & (last_bin < 255):
            key, last, total = _cut_of_few(
                x, n, heat, top, lowest, k, p, total, last_bin, few, room + row * ROOM, ROOM, BLOCK
            )
        else:
            ties = tl.full((), 0, tl.int32)
            if k > 0:
                key, ties = kth_key(x, n, k, heat, True, True, BLOCK)
            if p < 1:
                key, ties = _nucleus(x, n, heat, top, top_key, key, ties, lowest, p, BLOCK)
            last, total = _last_of(x, n, heat, top, key, ties, lowest, BLOCK)
    tl.store(keys + row, key)
    tl.store(lasts + row, last)
    tl.store(lowests + row, lowest)
    tl.store(tops + row, top)
    tl.store(masses + row, total)


@triton.jit
def _bin(d):
    """Eighths of a distance d <= 0 from the maximum; 255 holds all that is far away."""
    return tl.minimum(d * -8.0, 255.0).to(tl.int32)


@triton.jit
def _survey(x, n, heat, top, lowest, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Mass of all tokens that min_p leaves, and how many there are in each `_bin`."""
    lane = tl.arange(0, BLOCK)
    mass = tl.zeros([BLOCK], tl.int64)
    counts = tl.zeros([256], tl.int32)
    for start in range(0, n, BLOCK):
        at = start + lane
        d = key_number(load_key(x, at, n, heat, True, True)) - top
        valid = (at < n) & (d >= lowest)
        mass += tl.where(valid, mass_of(d), 0)
        if COUNT:
            counts += tl.histogram(_bin(tl.where(valid, d, 0.0)), 256, mask=valid)
    return tl.sum(mass), counts


@triton.jit
def _enough(total, p):
    """The mass that a nucleus has to reach: ceil(total * p), at least 1."""
    wanted = total.to(tl.float64) * p.to(tl.float64)
    enough = wanted.to(tl.int64)
    enough += (enough.to(tl.float64) < wanted).to(tl.int64)
    return tl.maximum(enough, 1)


@triton.jit
def _candidates(counts, total, k, p):
    """The last bin that is needed, and how many tokens there are up to it.

    With top_k the bins up to the k-th token; else so many that the least mass they can have is
    enough (a token's mass is that of its bin's far end or more, less 2^-20 for rounding).
    """
    index = tl.arange(0, 256)
    so_far = tl.cumsum(counts)
    if k > 0:
        last_bin = tl.sum((so_far < tl.minimum(k, tl.sum(counts))).to(tl.int32))
    else:
        each = mass_of((index + 1).to(tl.float32) * -0.125)
        least = tl.cumsum(counts.to(tl.int64) * tl.maximum(each - (each >> 20) - 1, 0))
        last_bin = tl.sum((least < _enough(total, p)).to(tl.int32))
    return last_bin, tl.sum(tl.where(index <= last_bin, counts, 0))


@triton.jit
def _cut_of_few(
    x, n, heat, top, lowest, k, p, total, last_bin, few, room, ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(key, last, mass) of the cut, which lies among the `few` tokens of the first bins."""
    lane = tl.arange(0, BLOCK)
    moved = 0
    for start in range(0, n, BLOCK):
        at = start + lane
        own = load_key(x, at, n, heat, True, True)
        d = key_number(own) - top
        mine = ((at < n) & (d >= lowest) & (_bin(d) <= last_bin)).to(tl.int32)
        tl.store(room + moved + tl.cumsum(mine) - 1, with_index(own, at), mine != 0)
        moved += tl.sum(mine)
    tl.debug_barrier()  # they were stored by other threads of this program
    rank = tl.arange(0, ROOM)
    packed = tl.sort(tl.load(room + rank, rank < few, other=LOWEST), descending=True)
    left = (rank < few) & ((k == 0) | (rank < k))
    mass = tl.where(left, mass_of(key_number((packed >> 32).to(tl.int32)) - top), 0)
    if k > 0:
        total = tl.sum(mass)
    if p < 1:
        left = left & (tl.cumsum(mass) - mass < _enough(total, p))
    end = tl.min(tl.where(left, packed, 2**63 - 1))
    return (end >> 32).to(tl.int32), index_of(end), tl.sum(tl.where(left, mass, 0))


@triton.jit
def _last_of(x, n, heat, top, key, ties, lowest, BLOCK: tl.constexpr):
    """The place of the last of the equals that are left, and the mass of everything that is."""
    lane = tl.arange(0, BLOCK)
    equal = tl.full((), 0, tl.int32)
    last = tl.full((), 0, tl.int32)
    total = tl.full((), 0, tl.int64)
    for start in range(0, n, BLOCK):
        at = start + lane
        own = load_key(x, at, n, heat, True, True)
        same = ((own == key) & (at < n)).to(tl.int32)
        kept = (same != 0) & (equal + tl.cumsum(same) <= ties)
        last = tl.maximum(last, tl.max(tl.where(kept, at, 0)))
        equal += tl.sum(same)
        d = key_number(own) - top
        kept = (kept | ((own > key) & (at < n))) & (d >= lowest)
        total += tl.sum(tl.where(kept, mass_of(d), 0))
    return last, total


@triton.jit
def _nucleus(x, n, heat, top, top_key, key, ties, lowest, p, BLOCK: tl.constexpr):
    """The cut (key, equals that are kept) of the fewest best tokens with a share p of the mass.

    Of what an earlier cut (key, ties) leaves. The mass of all keys from a pivot on falls as the
    pivot rises; the cut is the largest key for which it is enough. It is searched by halving the
    range of values, and the ends of the range move on to values that occur in the row.
    """
    total, _, _ = _masses_from(x, n, heat, top, key + 1, lowest, BLOCK)
    total += ties * _mass_at(key, top, lowest)
    enough = _enough(total, p)
    low = tl.maximum(key, float_key(top - _NO_MASS))  # the mass from here on is enough
    high = top_key + 1  # from here on it is not
    while low + 1 < high:
        middle = float_key((key_number(low) + key_number(high - 1)) * 0.5)
        pivot = tl.minimum(tl.maximum(middle, low + 1), high - 1)
        mass, above, below = _masses_from(x, n, heat, top, pivot, lowest, BLOCK)
        if mass >= enough:
            low = above
        else:
            high = tl.maximum(below, low) + 1
    above_cut, _, _ = _masses_from(x, n, heat, top, low + 1, lowest, BLOCK)
    each = tl.maximum(_mass_at(low, top, lowest), 1)
    return low, ((enough - above_cut + each - 1) // each).to(tl.int32)


@triton.jit
def _mass_at(key, top, lowest):
    """Mass of one token of a key that may be none's."""
    d = key_number(key) - top
    return tl.where((key > LOWEST_KEY) & (d >= lowest), mass_of(d), 0)


@triton.jit
def _masses_from(x, n, heat, top, pivot, lowest, BLOCK: tl.constexpr):
    """Mass of all keys from `pivot` on, the smallest of these keys and the largest below them."""
    lane = tl.arange(0, BLOCK)
    mass = tl.zeros([BLOCK], tl.int64)
    above = tl.full([BLOCK], _LAST, tl.int32)
    below = tl.full([BLOCK], LOWEST_KEY, tl.int32)
    for start in range(0, n, BLOCK):
        at = start + lane
        own = load_key(x, at, n, heat, True, True)
        d = key_number(own) - top
        counted = (own >= pivot) & (at < n) & (d >= lowest)
        mass += tl.where(counted, mass_of(d), 0)
        above = tl.minimum(above, tl.where((own >= pivot) & (at < n), own, _LAST))
        below = tl.maximum(below, tl.where((own < pivot) & (at < n), own, LOWEST_KEY))
    return tl.sum(mass), tl.min(above), tl.max(below)
