"""A token of each row: the largest of z plus Gumbel noise, ties to the lowest id."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton.functions import log, log1p
from samebits.engines.triton.order.keys import LOWEST, float_key, index_of, with_index
from samebits.engines.triton.sampling.filter import SCALE

_BELOW_ONE = tl.constexpr(1 - 2.0**-24)


@triton.jit
def gumbel(words):
    """Noise of uint32 words; the bits of `contract.random.gumbel`."""
    v = (words.to(tl.float32) + 0.5) * (2.0**-32)
    v = tl.minimum(v, _BELOW_ONE)
    return -log(-log1p(-v))


@triton.jit
def _is_greedy(temperature, top_k, row, TOP_K: tl.constexpr):
    greedy = (tl.load(temperature + row) > 0) == 0
    if TOP_K:
        greedy = greedy | (tl.load(top_k + row) == 1)
    return greedy


@triton.jit
def draw_kernel(
    logits, temperature, top_k, seeds, positions, keys, lasts, lowests, tops, best, n, chunk,
    stride, TOP_K: tl.constexpr, FILTERED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Best (score, id) of one chunk of a row, packed: best [rows, chunks] int64.

    A Philox counter serves four ids, so a program takes every fourth id four times.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x = logits + row * stride
    quad = tl.arange(0, BLOCK // 4)
    winner = tl.full([BLOCK // 4], LOWEST, tl.int64)
    begin, end = part * chunk, min(n, (part + 1) * chunk)
    if _is_greedy(temperature, top_k, row, TOP_K):
        for start in range(begin, end, BLOCK):
            for word in tl.static_range(4):
                at = start + 4 * quad + word
                value = tl.load(x + at, at < n, other=0.0).to(tl.float32)
                packed = with_index(float_key(value), at)
                winner = tl.maximum(winner, tl.where(at < n, packed, LOWEST))
    else:
        heat = tl.load(temperature + row)
        seed = tl.load(seeds + row).to(tl.uint64, bitcast=True)
        position = tl.load(positions + row).to(tl.uint64, bitcast=True)
        if FILTERED:
            key = tl.load(keys + row)
            last = tl.load(lasts + row)
            lowest = tl.load(lowests + row)
            top = tl.load(tops + row)
        for start in range(begin, end, BLOCK):
            counter = (start // 4 + quad).to(tl.uint32)
            zero = tl.zeros_like(counter)
            words = tl.philox(
                seed, counter, zero + (position & 0xFFFFFFFF).to(tl.uint32),
                zero + (position >> 32).to(tl.uint32), zero,
            )  # fmt: skip
            for word in tl.static_range(4):
                at = start + 4 * quad + word
                value = tl.load(x + at, at < n, other=0.0).to(tl.float32)
                z = tl.div_rn(value, tl.zeros_like(value) + heat)
                packed = with_index(float_key(z + gumbel(words[word])), at)
                left = at < n
                if FILTERED:
                    own = float_key(z)
                    left = left & ((own > key) | ((own == key) & (at <= last)))
                    left = left & ~(z - top < lowest)  # a NaN stays
                winner = tl.maximum(winner, tl.where(left, packed, LOWEST))
    tl.store(best + row * tl.num_programs(1) + part, tl.max(winner))


@triton.jit(do_not_specialize=["chunks"])
def finish_kernel(
    logits, temperature, top_k, tops, masses, best, tokens, scores, chunks, stride,
    TOP_K: tl.constexpr, LOGPROBS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The best of a row's chunks, and (z - top) - log(mass) of it; 0 for greedy rows."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK)
    packed = tl.load(best + row * chunks + part, part < chunks, other=LOWEST)
    token = index_of(tl.max(packed))
    tl.store(tokens + row, token.to(tl.int64))
    if LOGPROBS:
        heat = tl.load(temperature + row)
        value = tl.load(logits + row * stride + token).to(tl.float32)
        mass = tl.load(masses + row).to(tl.float32) * (1.0 / SCALE)
        score = (tl.div_rn(value, heat) - tl.load(tops + row)) - log(mass)
        tl.store(scores + row, tl.where(_is_greedy(temperature, top_k, row, TOP_K), 0.0, score))
