"""Products with a weight that the ranks of a group share, by rows or by columns.

**Row-parallel**: the reduction axis K is shared. The tree is ``balanced(parts)`` over all of K: a
rank's share is a subtree, and the subtrees of all ranks are joined in one binary order whatever
their number.

**Column-parallel**: the output features N are shared. A feature is computed whole on one rank, with
the tree of the whole weight, so its bits depend on no number of ranks.
"""

from __future__ import annotations

from functools import partial
from numbers import Integral

import torch
import torch.distributed as dist

from samebits.contract import Balanced
from samebits.contract.tree import LEAF_EDGE, cut
from samebits.errors import DTypeError, SamebitsError, ShapeError
from samebits.ops.checks import dense
from samebits.ops.linear import linear
from samebits.ops.parallel import overlap
from samebits.ops.parallel.join import add, finish, join
from samebits.ops.parallel.ranks import Group, Ranks, calls, group_of, ranks_of
from samebits.plan.contracts import contract_of


def row_parallel_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    parts: int = 8,
    group: Group = None,
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
        group: the ranks; None: the default group, if there is one; "alone": this process.
        exchange: how partial results meet, which is a matter of speed alone. True, False: in
            messages of the group: every rank joins a share of the rows and all gather the rounded
            rows, or every rank joins all rows. None: over peer memory where the ranks' GPUs have
            it, else in messages, by the number of rows.

    Returns:
        [..., N], the same on every rank.

    Raises:
        ShapeError: `parts` does not divide among the ranks, or K among the parts.
        DTypeError, ContractError: as `linear`.
        RankError: the ranks do not agree or are in different calls, or one of them failed.
    """
    refuse_gradients("row_parallel_linear", x, weight, bias)
    known = group_of("row_parallel_linear", group)
    size = 1 if known is None else dist.get_world_size(known)
    tree = Balanced(parts)
    share = weight.shape[1] if weight.dim() == 2 else 0
    if x.shape[-1:] != weight.shape[1:]:
        raise ShapeError(
            f"row_parallel_linear: x {tuple(x.shape)} needs this rank's columns of weight "
            f"{tuple(weight.shape)} last"
        )
    if parts % size:
        named = ", ".join(str(n) for n in range(1, parts + 1) if parts % n == 0)
        raise ShapeError(
            f"row_parallel_linear: {parts} parts do not divide among {size} ranks: the contract "
            f"{tree} has the same bits for {named} ranks"
        )
    if not share or (share * size) % (parts * LEAF_EDGE):
        raise ShapeError(
            f"row_parallel_linear: K = {share * size} is no multiple of {parts} * {LEAF_EDGE}, so "
            "a rank's columns are no subtree: use fewer parts"
        )
    if size == 1 and x.is_cuda:
        return linear(x, weight, bias, tree=tree)
    if bias is not None and bias.device != x.device:
        raise DTypeError(f"row_parallel_linear: bias is on {bias.device}, x on {x.device}")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype is not x.dtype):
        raise ShapeError(
            f"row_parallel_linear: bias must be [{weight.shape[0]}] of {x.dtype}, not "
            f"{tuple(bias.shape)} of {bias.dtype}"
        )
    ranks = ranks_of("row_parallel_linear", "alone" if known is None else known)
    rows, product = x.reshape(-1, share), partial(subtree, weight=weight, leaves=parts // size)
    if ranks is None:
        y = finish([product(rows)], bias, x.dtype)
    else:
        bias = None if bias is None else bias.resolve_neg().contiguous()
        made = None
        if exchange is None:
            made = overlap.row_parallel(ranks, rows, weight.shape[0], bias, product)
        if made is None:
            call = calls(
                "row_parallel_linear", x, x=x, weight=weight, bias=bias is not None, parts=parts,
                exchange=exchange,
            )  # fmt: skip
            made = join(ranks, product(rows), bias, x.dtype, exchange, call)
        y = made
    return y.view(*x.shape[:-1], weight.shape[0])


def subtree(x: torch.Tensor, weight: torch.Tensor, leaves: int) -> torch.Tensor:
    """The fp32 sum of this rank's leaves, [M, N]."""
    if leaves == 1:
        return linear(x, weight, out_dtype=torch.float32, tree="chain" if x.is_cuda else None)
    tree = Balanced(leaves)
    if x.is_cuda:
        return linear(x, weight, out_dtype=torch.float32, tree=tree)
    return add(
        [
            linear(x[:, start:stop], weight[:, start:stop], out_dtype=torch.float32)
            for start, stop in cut(tree, 0, weight.shape[1])
        ]
    )


def column_parallel_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    group: Group = None,
    gather: bool = False,
    features: int | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias`` for rows of a weight that lie on the ranks of a group.

    The bits are those of ``linear`` with the whole weight, for every number of ranks: on a GPU the
    tree is the one that ``contract_of`` names for the whole shape.

    Args:
        x: [..., K], the same on every rank.
        weight: [N / ranks, K], dtype of x: this rank's output features, the ranks in order.
        bias: [N / ranks], dtype of x: of this rank's features; or None.
        group: the ranks; None: the default group, if there is one; "alone": this process.
        gather: give all N features on every rank, instead of this rank's.
        features: N, where ranks hold copies (K and V heads of few) or padding, so that it is not
            the number of ranks times this rank's features.

    Returns:
        [..., N / ranks], or [..., N] with `gather`.

    Raises:
        ShapeError, DTypeError, ContractError: as `linear`; or copies are to be gathered.
        RankError: the ranks do not agree or are in different calls, or one of them failed.
    """
    refuse_gradients("column_parallel_linear", x, weight, bias)
    ranks = ranks_of("column_parallel_linear", group)
    most = weight.shape[0] * (1 if ranks is None else ranks.size) if weight.dim() else 0
    if features is not None and not (isinstance(features, Integral) and 0 < features <= most):
        raise ShapeError(
            f"column_parallel_linear: features={features} is no number of 1 to {most}, which the "
            f"ranks hold with {tuple(weight.shape)} each, copies and padding included"
        )
    if ranks is None or not gather:
        return part_of_columns(ranks, x, weight, bias, features)
    if features is not None and features != weight.shape[0] * ranks.size:
        raise ShapeError(
            f"column_parallel_linear: {ranks.size} ranks with {weight.shape[0]} features each do "
            f"not make {features}: copies and padding cannot be gathered"
        )
    call = calls("column_parallel_linear", x, x=x, weight=weight, bias=bias is not None)
    y = part_of_columns(ranks, x, weight, bias, features)
    return side_by_side(ranks.gather(y, call))


def part_of_columns(
    ranks: Ranks | None,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    features: int | None = None,
) -> torch.Tensor:
    """This rank's features, with the tree of the whole weight."""
    if ranks is None or not x.is_cuda or weight.dim() != 2:
        return linear(x, weight, bias)
    n = weight.shape[0] * ranks.size if features is None else features
    whole = contract_of("linear", n=n, k=weight.shape[1], dtype=weight.dtype, device="sm_90")
    return linear(x, weight, bias, tree=whole.tree)


def side_by_side(parts: torch.Tensor) -> torch.Tensor:
    """[..., ranks * N] from [ranks, ..., N]."""
    return parts.movedim(0, -2).flatten(-2)


def refuse_gradients(op: str, *tensors: torch.Tensor | None) -> None:
    """Raises if a gradient is wanted: it would have to pass from rank to rank.

    Raises:
        SamebitsError: it is.
        DTypeError: one is no dense tensor.
    """
    dense(op, *tensors)
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                raise SamebitsError(f"samebits.ops.{op} has no backward; use torch.no_grad()")
