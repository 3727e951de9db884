"""Bags of embedding rows: sum, mean or maximum of the rows that each bag names.

Contract: a bag's accumulators (float32) start from +0 and take ``weight * row`` (each product and
each sum rounded to float32) in the order of the items; the mean divides once; one rounding to the
output type. A bag depends on its own items only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import order as engine
from samebits.errors import DTypeError, ShapeError

MODES = ("sum", "mean", "max")


class Bags(NamedTuple):
    """Result of `embedding_bag` with what its backward needs."""

    out: torch.Tensor  #: [bags, dim], weight's dtype
    bag_of: torch.Tensor  #: [n] int64: the bag of each item
    counts: torch.Tensor  #: [bags] int64: items counted (padding is not)
    chosen: torch.Tensor  #: mode "max": [bags, dim] int64 row taken per element (-1: empty)


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    mode: str = "sum",
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Bags:
    """Reduces rows of `weight` bag by bag.

    Args:
        weight: [rows, dim] float32, bfloat16 or float16.
        indices: [n] int32 or int64 in 0..rows-1.
        offsets: [bags] int: where each bag starts ([bags + 1] with `include_last_offset`).
        mode: "sum", "mean" or "max".
        per_sample_weights: [n] of weight's dtype, for mode "sum".
        padding_idx: items with this index are left out (negative: none).

    Raises:
        ShapeError, DTypeError: operands do not fit.
        IndexError: an index or offset is out of range.
    """
    if weight.dtype not in DTYPE_CODE or weight.device.type not in ("cpu", "cuda"):
        raise DTypeError(
            f"embedding_bag: weight of {weight.dtype} on {weight.device} is not covered"
        )
    if weight.dim() != 2 or indices.dim() != 1 or offsets.dim() != 1:
        raise ShapeError(
            "embedding_bag: weight must be 2-D, indices and offsets 1-D, not "
            f"{tuple(weight.shape)}, {tuple(indices.shape)} and {tuple(offsets.shape)}"
        )
    if mode not in MODES:
        raise ShapeError(f"embedding_bag: mode={mode!r} is not one of {', '.join(MODES)}")
    if per_sample_weights is not None:
        if mode != "sum":
            raise ShapeError("embedding_bag: per_sample_weights need mode='sum'")
        if per_sample_weights.shape != indices.shape or per_sample_weights.dtype != weight.dtype:
            raise ShapeError(
                "embedding_bag: per_sample_weights must have indices' shape and weight's dtype"
            )
        per_sample_weights = per_sample_weights.resolve_neg().contiguous()
    indices = indices.to(torch.int64).contiguous()
    n, rows = indices.numel(), weight.shape[0]
    if n and not (int(indices.min()) >= 0 and int(indices.max()) < rows):
        raise IndexError(f"embedding_bag: an index is outside 0..{rows - 1}")
    edges = offsets.to(torch.int64)
    if not include_last_offset:
        edges = torch.cat([edges, edges.new_tensor([n])])
    if edges.numel() and (
        int(edges[0]) != 0 or int(edges[-1]) > n or bool((edges.diff() < 0).any())
    ):
        raise IndexError(f"embedding_bag: offsets must start at 0 and ascend to at most {n}")
    if edges.numel() == 0:
        raise ShapeError("embedding_bag: include_last_offset needs at least one offset")
    weight = weight.resolve_neg()
    if weight.shape[1] > 1 and weight.stride(1) != 1:
        weight = weight.contiguous()
    run = engine.embedding_bag
    if weight.is_cuda:
        from samebits.engines.triton.scatter.bags import embedding_bag as run
    out, counts, chosen = run(
        weight, indices, edges.contiguous(), MODES.index(mode), per_sample_weights, padding_idx
    )
    bag_of = torch.arange(edges.numel() - 1, device=edges.device).repeat_interleave(edges.diff())
    return Bags(out, bag_of, counts, chosen)
