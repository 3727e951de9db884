"""Mixture of experts by its contracts, in NumPy: slow, one slot at a time where it can be."""

from __future__ import annotations

import numpy as np
import torch

from samebits.contract import LinearContract, activations, functions
from samebits.contract import numerics as nx
from samebits.contract.numerics import F32, Array
from samebits.ops.linear.reference import narrow, widen


def ranked_first(row: F32) -> list[int]:
    """Indices of a row, largest first, NaN before everything, ties to the lowest."""
    return sorted(range(len(row)), key=lambda i: (not np.isnan(row[i]), -row[i], i))


def router_topk(
    logits: torch.Tensor,
    k: int,
    renormalize: bool = True,
    scoring: str = "softmax",
    bias: torch.Tensor | None = None,
) -> tuple[F32, Array]:
    """Weights and ids [T, k] of logits [T, E]."""
    x = widen(logits)
    ids = np.zeros((len(x), k), np.int32)
    weights = np.zeros((len(x), k), np.float32)
    for t, row in enumerate(x):
        ranked, score, total = row, activations.sigmoid(row), None
        if scoring == "softmax":
            with np.errstate(all="ignore"):
                score = functions.exp(nx.sub32(row, np.fmax.reduce(row)))
            nan = np.isnan(score).any()
            fixed = sum(int(np.float32(e) * np.float32(2**40)) for e in score) if not nan else 0
            total = (
                nx.mul32(np.float32(fixed), np.float32(2.0**-40)) if not nan else nx.CANONICAL_NAN
            )
            if bias is not None:
                score, total = nx.div32(score, total), None
        if scoring == "sigmoid" or bias is not None:
            ranked = score
        if bias is not None:
            ranked = nx.add32(ranked, widen(bias))
        ids[t] = ranked_first(ranked)[:k]
        chosen = score[ids[t]]
        if renormalize:
            total = np.float32(0)
            for e in chosen:
                total = nx.add32(total, e)
        weights[t] = nx.canonical(chosen) if total is None else nx.div32(chosen, total)
    return weights, ids


def grouped_linear(
    contract: LinearContract,
    x: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor,
    bias: torch.Tensor | None = None,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """[slots, N] for ids [M] or [M, k], rounded to the contract's output."""
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    flat = ids.reshape(-1)
    rows = torch.arange(len(flat)) // (ids.shape[1] if ids.dim() == 2 else 1)
    out = torch.zeros(len(flat), weight.shape[1], dtype=kinds[contract.output])
    for e in range(len(weight)):
        at = flat == e
        if at.any():
            out[at] = torch.as_tensor(
                contract.evaluate(
                    x[rows[at]],
                    weight[e],
                    None if bias is None else bias[e],
                    contract.output,
                    x_scale=None if x_scale is None else x_scale[rows[at]],
                    w_scale=None if w_scale is None else w_scale[e],
                )
            )
    return out


def silu_mul(both: torch.Tensor) -> torch.Tensor:
    """silu of the first half, rounded to the dtype, times the second half."""
    gate, up = both.chunk(2, -1)
    opened = narrow(activations.silu(widen(gate)), both.dtype)
    return narrow(nx.mul32(widen(opened), widen(up)), both.dtype)


def combine(y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[T, H] from y [T, k, H]."""
    rows, w = widen(y), widen(weights)
    acc = np.zeros((y.shape[0], y.shape[2]), np.float32)
    for slot in range(y.shape[1]):
        acc = nx.add32(acc, nx.mul32(w[:, slot, None], rows[:, slot]))
    return narrow(acc, y.dtype)
