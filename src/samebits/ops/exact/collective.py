"""Sums over ranks that no number of ranks, order, ring or tree can change.

Every element is the correctly rounded exact sum of what the ranks hold. Numbers travel as they are:
each rank sums its share of the elements and sends the results on, which moves as many bytes as a
ring does.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F

from samebits.ops.exact.engine import checked, columns

#: From so many elements a rank on it sums a share instead of everything.
_EXCHANGE_FROM = 4096


def all_reduce(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The sum of x over the ranks of a group, exact and rounded once; the same on every rank.

    Args:
        x: fp32, bf16 or fp16, of one shape and dtype on all ranks.
        group: the ranks; None: the default group, or this process alone without one.

    Returns:
        A new tensor like x. Inf, NaN and zero as in `ExactContract`.

    Raises:
        DTypeError, SamebitsError: see `samebits.ops.exact`.
    """
    flat = checked("all_reduce", x).reshape(-1)
    ranks = dist.get_world_size(group) if dist.is_initialized() else 1
    if ranks == 1:
        return columns(flat.unsqueeze(0), x.dtype).view(x.shape)
    n = flat.numel()
    if n < _EXCHANGE_FROM:
        everyone = flat.new_empty((ranks, n))
        dist.all_gather_into_tensor(everyone.view(-1), flat, group=group)
        return columns(everyone, x.dtype).view(x.shape)
    share = -(-n // ranks)
    sent = F.pad(flat, (0, share * ranks - n))
    mine = torch.empty_like(sent)
    dist.all_to_all_single(mine, sent, group=group)
    total = columns(mine.view(ranks, share), x.dtype)
    everyone = total.new_empty(share * ranks)
    dist.all_gather_into_tensor(everyone, total, group=group)
    return everyone[:n].view(x.shape)
