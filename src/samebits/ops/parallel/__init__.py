"""A product whose reduction axis is shared among ranks, with the bits of one rank.

The tree is ``balanced(parts)`` over the whole axis: a rank's share is a subtree, and the subtrees
of all ranks are joined in the same binary order whatever their number. What is sent is data, never
a sum: the order of a reduction inside a communication library follows message sizes and topology.
"""

from __future__ import annotations

import operator

import torch
import torch.distributed as dist
import torch.nn.functional as F

from samebits.contract import Balanced
from samebits.contract.tree import LEAF_EDGE, cut, fold
from samebits.errors import ShapeError
from samebits.ops.linear import linear

__all__ = ["row_parallel_linear"]

#: From so many rows on a rank joins its share of the rows instead of all of them.
_EXCHANGE_FROM = 64


def row_parallel_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    parts: int = 8,
    group: dist.ProcessGroup | None = None,
    exchange: bool | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias`` for columns of x and weight that lie on the ranks of a group.

    The bits are those of ``linear(x, weight, bias, tree="balanced(parts)")`` on one rank that has
    all columns (on a CPU: of leaves that are `linear`'s own tree), for every number of ranks that
    divides `parts`. Partial results travel in fp32; bias and rounding come last.

    Args:
        x: [..., K / ranks]: this rank's columns, the ranks in order.
        weight: [N, K / ranks], dtype of x.
        bias: [N], dtype of x, the same on every rank; or None.
        parts: leaves of the whole axis, a power of two; K is a multiple of ``parts * 128``.
        group: the ranks; None: this process alone.
        exchange: how partial results meet, which is a matter of speed alone: True: every rank joins
            a share of the rows and all gather the rounded rows; False: every rank joins all rows.
            None: by the number of rows.

    Returns:
        [..., N], the same on every rank.

    Raises:
        ShapeError: `parts` does not divide among the ranks, or K among the parts.
        DTypeError, ContractError: as `linear`.
    """
    ranks = 1 if group is None else dist.get_world_size(group)
    tree = Balanced(parts)
    share = weight.shape[1] if weight.dim() == 2 else 0
    if parts % ranks:
        raise ShapeError(f"row_parallel_linear: {parts} parts do not divide among {ranks} ranks")
    if not share or (share * ranks) % (parts * LEAF_EDGE):
        raise ShapeError(
            f"row_parallel_linear: K = {share * ranks} is no multiple of {parts} * {LEAF_EDGE}, so "
            "a rank's columns are no subtree: use fewer parts"
        )
    if ranks == 1 and x.is_cuda:
        return linear(x, weight, bias, tree=tree)
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype is not x.dtype):
        raise ShapeError(
            f"row_parallel_linear: bias must be [{weight.shape[0]}] of {x.dtype}, not "
            f"{tuple(bias.shape)} of {bias.dtype}"
        )
    rows = _subtree(x.reshape(-1, share), weight, parts // ranks)
    shape = (*x.shape[:-1], weight.shape[0])
    if group is None or ranks == 1:
        return _finish(rows, bias, x.dtype).view(shape)
    if exchange is None:
        exchange = rows.shape[0] >= _EXCHANGE_FROM
    join = _exchange if exchange and rows.shape[0] else _gather
    return join(rows, bias, x.dtype, group, ranks).view(shape)


def _subtree(x: torch.Tensor, weight: torch.Tensor, leaves: int) -> torch.Tensor:
    """The fp32 sum of this rank's leaves, [M, N]."""
    if leaves == 1:
        return linear(x, weight, out_dtype=torch.float32, tree="chain" if x.is_cuda else None)
    tree = Balanced(leaves)
    if x.is_cuda:
        return linear(x, weight, out_dtype=torch.float32, tree=tree)
    parts = [
        linear(x[:, start:stop], weight[:, start:stop], out_dtype=torch.float32)
        for start, stop in cut(tree, 0, weight.shape[1])
    ]
    return _join(parts)


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    return fold(parts, "pairwise", operator.add)


def _finish(total: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    if bias is not None:
        total = total + bias.to(torch.float32)
    return total.to(dtype)


def _gather(
    rows: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    group: dist.ProcessGroup,
    ranks: int,
) -> torch.Tensor:
    """Every rank gets all partial results: one message, for few rows."""
    count, n = rows.shape
    everyone = rows.new_empty((ranks * count, n))
    dist.all_gather_into_tensor(everyone, rows, group=group)
    return _finish(_join(list(everyone.view(ranks, count, n))), bias, dtype)


def _exchange(
    rows: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    group: dist.ProcessGroup,
    ranks: int,
) -> torch.Tensor:
    """Every rank gets the partial results of its rows, and sends them on rounded."""
    count, n = rows.shape
    share = -(-count // ranks)
    rows = F.pad(rows, (0, 0, 0, share * ranks - count))
    mine = torch.empty_like(rows)
    dist.all_to_all_single(mine, rows, group=group)
    done = _finish(_join(list(mine.view(ranks, share, n))), bias, dtype)
    everyone = done.new_empty((ranks * share, n))
    dist.all_gather_into_tensor(everyone, done, group=group)
    return everyone[:count]
