"""Sampling on the CPU: NumPy integers, the engine's exp and logarithms. Operands are validated."""

from __future__ import annotations

import numpy as np
import torch

from samebits.contract.numerics import Array
from samebits.contract.random import token_words, uniform
from samebits.engines.cpu.pointwise import unary
from samebits.ops.order import argmax

#: Fixed point of probability masses: 40 bits after the point.
_SCALE = np.float32(2.0**40)


def draw(
    logits: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    logprobs: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Tokens [R] and their logarithmic probabilities [R] or None."""
    rows = logits.shape[0]
    tokens = logits.new_empty(rows, dtype=torch.int64)
    scores = logits.new_empty(rows, dtype=torch.float32) if logprobs else None
    for row in range(rows):
        k = 0 if top_k is None else int(top_k[row])
        x = logits[row].to(torch.float32)
        if not float(temperature[row]) > 0 or k == 1:
            tokens[row] = argmax(x)
            if scores is not None:
                scores[row] = 0.0
            continue
        z = x / temperature[row]
        z = torch.where(z == 0, 0.0, z)
        top = z.amax() if not z.isnan().any() else z.new_tensor(torch.nan)
        d = z - top
        left = torch.ones_like(z, dtype=torch.bool)
        mass = _mass(d)
        if bool(top.isfinite()):
            p = 1.0 if top_p is None else float(top_p[row])
            lowest = None if min_p is None else min_p[row]
            left = torch.from_numpy(_left(z.numpy(), d.numpy(), mass, k, p, _log(lowest)))
        words = token_words(int(seeds[row]), int(positions[row]), len(z))
        noise = -unary("log", -unary("log1p", -torch.from_numpy(uniform(words))))
        score = torch.where(left, z + noise, -torch.inf)
        tokens[row] = argmax(score)
        if scores is not None:
            total = mass[left.numpy()].sum(dtype=np.int64)
            log_mass = unary("log", z.new_tensor([total.astype(np.float32) / _SCALE]))
            scores[row] = d[tokens[row]] - log_mass[0]
    return tokens, scores


def _mass(d: torch.Tensor) -> Array:
    """exp(d) in units of 2^-40, cut."""
    with np.errstate(all="ignore"):
        mass: Array = (unary("exp", d).numpy() * _SCALE).astype(np.int64)
    return mass


def _log(min_p: torch.Tensor | None) -> float:
    """Smallest distance from the maximum that is left."""
    if min_p is None or not float(min_p) > 0:
        return -np.inf
    return min(0.0, float(unary("log", min_p.reshape(1))[0]))


def _left(z: Array, d: Array, mass: Array, k: int, p: float, lowest: float) -> Array:
    """Which tokens the filters leave: a head of the order by (value, id)."""
    order = np.argsort(-z, kind="stable")
    count = len(z) if k <= 0 else min(k, len(z))
    count = min(count, int((d >= np.float32(lowest)).sum()))
    if p < 1:
        before = np.cumsum(mass[order[:count]])
        wanted = np.float64(before[-1]) * np.float64(p)
        enough = max(1, int(np.ceil(wanted)))
        count = int(np.searchsorted(before, enough)) + 1
    left = np.zeros(len(z), bool)
    left[order[:count]] = True
    return left
