"""Partial sums of all ranks, folded in one order: the collective of row-parallel products.

Every rank has an fp32 partial sum of every result, a subtree of ``balanced(parts)``. They meet as
they are, and are folded pairwise in the order of ranks; bias and rounding come last. How they meet
is a matter of speed:

- peer memory: GPUs of one machine write to each other's memory (`peers`);
- gather: every rank gets all partial sums and folds all rows: one message, for few rows;
- exchange: every rank gets the partial sums of its share of the rows, and sends them on rounded.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from samebits.contract.tree import fold
from samebits.engines.cpu import order as engine
from samebits.ops.parallel.peers import peers_of
from samebits.ops.parallel.ranks import Ranks

#: From so many rows on a rank joins its share of the rows instead of all of them.
EXCHANGE_FROM = 64


def join(
    ranks: Ranks,
    partial: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    exchange: bool | None = None,
    call: bytes | None = None,
) -> torch.Tensor:
    """The sum of all ranks' `partial`, plus `bias`, rounded to `dtype`; the same on every rank.

    Args:
        partial: [M, N] fp32, contiguous.
        bias: [N] of `dtype`, or None.
        exchange: True, False: they meet in messages, exchanged or gathered. None: over peer memory
            where the ranks' GPUs have it, else by the number of rows.
        call: what `ranks.calls` gives.
    """
    if exchange is None and partial.is_cuda:
        peers = peers_of(ranks, partial)
        if peers is not None:
            out = torch.empty(partial.shape, dtype=dtype, device=partial.device)
            return peers.join(partial, bias, out) if out.numel() else out
    count = partial.shape[0]
    if exchange is None:
        exchange = count >= EXCHANGE_FROM
    if not exchange or not count:
        return finish(ranks.gather(partial, call), bias, dtype)
    ranks.alike(call)
    share = -(-count // ranks.size)
    rows = F.pad(partial, (0, 0, 0, share * ranks.size - count))
    mine = ranks.exchange(rows.view(ranks.size, share, -1))
    return ranks.gather(finish(mine, bias, dtype)).flatten(0, 1)[:count]


def finish(
    parts: torch.Tensor | Sequence[torch.Tensor], bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """``round(parts[0] + ... + parts[n - 1] + bias)``, the parts folded pairwise; n a power of two.

    Args:
        parts: n fp32 tensors [M, N].
        bias: [N] of `dtype`, or None.
    """
    first = parts[0]
    if first.is_cuda:
        from samebits.engines.triton.rows.fold import fold_parts

        assert isinstance(parts, torch.Tensor)
        folded: torch.Tensor = fold_parts(parts, bias, dtype)
        return folded
    total = add(parts)
    if bias is not None:
        total = total + bias.to(torch.float32)
    return engine.narrow(total, dtype)


def add(parts: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """The parts folded pairwise, fp32."""
    total: torch.Tensor = fold(list(parts), "pairwise", operator.add)
    return total
