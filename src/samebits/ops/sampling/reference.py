"""Sampling by its contract, one row at a time, in NumPy and Python integers."""

from __future__ import annotations

import math

import numpy as np
import torch

from samebits.contract import functions
from samebits.contract import numerics as nx
from samebits.contract.numerics import F32
from samebits.contract.random import gumbel, token_words
from samebits.ops.linear.reference import widen


def kept(
    z: F32, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> tuple[list[int], list[int]]:
    """Ids that the filters leave, best first, and their masses; z is finite at its maximum."""
    m = z.max()
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if top_k > 0:
        order = order[:top_k]
    if min_p > 0:
        least = min(np.float32(0), functions.log(np.full(1, min_p))[0])
        order = [i for i in order if nx.sub32(z[i], m) >= least]
    mass = [int(np.float64(e) * 2.0**40) for e in functions.exp(nx.sub32(z[np.asarray(order)], m))]
    if top_p < 1:
        enough = max(1, math.ceil(np.float64(sum(mass)) * np.float64(np.float32(top_p))))
        count = next(c for c in range(1, len(mass) + 1) if sum(mass[:c]) >= enough)
        order, mass = order[:count], mass[:count]
    return order, mass


def sample_row(
    logits: torch.Tensor,
    seed: int,
    position: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> tuple[int, F32]:
    """The token of one row [V] and its logarithmic probability."""
    x = widen(logits)

    def best(values: F32, ids: list[int]) -> int:
        return min(ids, key=lambda i: (not np.isnan(values[i]), -values[i], i))

    everything = list(range(len(x)))
    if not temperature > 0 or top_k == 1:
        return best(x, everything), np.zeros((), np.float32)
    z = nx.div32(x, np.float32(temperature))
    if not np.isfinite(np.max(z)):
        return best(z, everything), nx.CANONICAL_NAN
    left, mass = kept(z, top_k, top_p, min_p)
    noise = gumbel(token_words(seed, position, len(z)))
    token = best(nx.add32(z, noise), left)
    total = nx.mul32(np.float32(sum(mass)), np.float32(2.0**-40))
    return token, nx.sub32(nx.sub32(z[token], z.max()), functions.log(total[None]))[0]
