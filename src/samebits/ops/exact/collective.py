"""Sums over ranks that no number of ranks, order, ring or tree can change.

`all_reduce`: every element is the correctly rounded exact sum of what the ranks hold. Numbers
travel as they are: each rank sums its share of the elements and sends the results on, which moves
as many bytes as a ring does. On a CPU long messages go piece by piece, a piece ahead of the sums,
through the same buffers, and results arrive where they belong.

`row_parallel_linear`: the terms of one sum lie on several ranks, and it is rounded once all the
same. Partial sums travel in fp64 with bounds of their errors; for the few results that these leave
open the ranks exchange sums without rounding, which are integers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from samebits.engines.cpu import exact as integers
from samebits.errors import DTypeError, SamebitsError, ShapeError
from samebits.ops.checks import one_device
from samebits.ops.exact.engine import checked, columns, gradual, join, partial
from samebits.ops.parallel.ranks import PATIENCE, Group, Ranks, calls, group_of

#: From so many elements a rank on it sums a share instead of everything.
_EXCHANGE_FROM = 4096
#: Elements of a rank's share of a piece, on a CPU.
_PIECE = 1 << 19


def all_reduce(x: torch.Tensor, group: Group = None) -> torch.Tensor:
    """The sum of x over the ranks of a group, exact and rounded once; the same on every rank.

    Args:
        x: fp32, bf16 or fp16, of one shape and dtype on all ranks.
        group: the ranks; None: the default group, if there is one; "alone": this process.

    Returns:
        A new tensor like x. Inf, NaN and zero as in `ExactContract`.

    Raises:
        DTypeError, SamebitsError: see `samebits.ops.exact`.
        RankError: another rank failed, left, or did not answer before the group's timeout; on a
            CPU also: the ranks are in different calls.
    """
    flat = checked("all_reduce", x).reshape(-1)
    ranks = _ranks("all_reduce", group)
    if ranks is None:
        return columns(flat.unsqueeze(0), x.dtype).view(x.shape)
    n, call = flat.numel(), calls("exact.all_reduce", x, x=x)
    if n < _EXCHANGE_FROM:
        return columns(ranks.gather(flat, call), x.dtype).view(x.shape)
    ranks.alike(call)
    if not flat.is_cuda:
        return _by_pieces(flat, ranks).view(x.shape)
    share = -(-n // ranks.size)
    sent = F.pad(flat, (0, share * ranks.size - n)) if n % ranks.size else flat
    total = columns(ranks.exchange(sent.view(ranks.size, share)), x.dtype)
    return ranks.gather(total).view(-1)[:n].view(x.shape)


def _by_pieces(flat: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """`all_reduce` of flat [n] by messages between pairs of ranks."""
    flat = flat.contiguous()
    n, rank, group = flat.numel(), ranks.index, ranks.group
    peers = {r: dist.get_global_rank(group, r) for r in range(ranks.size) if r != rank}
    out = torch.empty_like(flat)
    held = flat.new_empty((2, ranks.size, min(_PIECE, -(-n // ranks.size))))
    starts = range(0, n, ranks.size * held.shape[2])

    def share(x: torch.Tensor, start: int, r: int) -> torch.Tensor:
        """What rank r sums of a piece; of the last piece perhaps less, or nothing."""
        length = min(starts.step, n - start)
        return x[start + length * r // ranks.size : start + length * (r + 1) // ranks.size]

    def exchange(ins: dict[int, torch.Tensor], outs: dict[int, torch.Tensor]) -> list[dist.Work]:
        with ranks.told():
            works = [dist.irecv(x, peers[r], group) for r, x in ins.items() if x.numel()]
            works += [dist.isend(x, peers[r], group) for r, x in outs.items() if x.numel()]
        return [work for work in works if work is not None]

    def finish(messages: list[dist.Work]) -> None:
        with ranks.told():
            for message in messages:
                message.wait()

    def begin(i: int) -> list[dist.Work]:
        width = share(flat, starts[i], rank).numel()
        return exchange(
            {r: held[i % 2, r, :width] for r in peers},
            {r: share(flat, starts[i], r) for r in peers},
        )

    here, there = begin(0), []
    for i, start in enumerate(starts):
        ahead = begin(i + 1) if i + 1 < len(starts) else []
        finish(here)
        mine = share(out, start, rank)
        terms = held[i % 2, :, : mine.numel()]
        terms[rank] = share(flat, start, rank)
        mine.copy_(columns(terms, flat.dtype))
        there += exchange({r: share(out, start, r) for r in peers}, dict.fromkeys(peers, mine))
        here = ahead
    finish(there)
    return out


def row_parallel_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    group: Group = None,
) -> torch.Tensor:
    """``x @ weight.T + bias`` for columns of x and weight that are spread over ranks in any way.

    The bits are those of `linear` on one rank with all columns.

    Args:
        x: [..., K_r], this rank's columns; any number of them.
        weight: [N, K_r], dtype of x.
        bias: [N], dtype of x or fp32, the same on every rank; or None.
        group: the ranks; None: the default group, if there is one; "alone": this process.

    Returns:
        [..., N] in x's dtype, the same on every rank.

    Raises:
        ShapeError, DTypeError, SamebitsError: other operands; see `samebits.ops.exact`. In the
            capture of a CUDA graph: the host looks which sums are open.
        RankError: as `all_reduce`.
    """
    op = "row_parallel_linear"
    x, weight = checked(op, x), checked(op, weight)
    bias = None if bias is None else checked(op, bias)
    if weight.dim() != 2 or not x.dim() or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"exact.{op}: x {tuple(x.shape)} and weight {tuple(weight.shape)}")
    if weight.dtype is not x.dtype:
        raise DTypeError(f"exact.{op}: weight must be {x.dtype}, not {weight.dtype}")
    one_device(f"exact.{op}", x, weight, bias)
    if bias is not None and (
        bias.shape != weight.shape[:1] or bias.dtype not in (x.dtype, torch.float32)
    ):
        raise ShapeError(f"exact.{op}: bias must be [{weight.shape[0]}] of {x.dtype} or fp32")
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise SamebitsError(
            f"exact.{op} waits for the GPU to see which sums are open, which a CUDA graph cannot: "
            "call it outside of the capture"
        )
    rows, n = x.reshape(x.shape[:-1].numel(), x.shape[-1]), weight.shape[0]
    ranks = _ranks(op, group)
    mine = torch.stack(partial(rows, weight))
    if ranks is None:
        parts = mine.unsqueeze(0)
    else:
        # The bias decides which sums are open, and so do all ranks' messages about those.
        call = calls(
            f"exact.{op}", x, bias, dtype=x.dtype, features=n, bias=bias, rows=list(x.shape[:-1])
        )
        parts = ranks.gather(mine, call)
    if bias is not None:
        with gradual(x):
            term = bias.to(torch.float32).expand(len(rows), n)
            exact = torch.stack((term.to(torch.float64), torch.zeros_like(mine[0])))
        parts = torch.cat((parts, exact.unsqueeze(0)))
    y, e = (t.reshape(len(parts), -1).contiguous() for t in parts.unbind(1))
    out, left = join(y, e, x.dtype)
    at = left.nonzero().flatten()  # the same on every rank
    if at.numel():
        places: tuple[Any, Any] = at // n, at % n
        (i, row), (j, column) = (p.unique(return_inverse=True) for p in places)
        held = integers.limbs(rows[i].cpu(), weight[j].cpu(), row.cpu(), column.cpu())
        total = _gathered(held.to(x.device), ranks).sum(0).cpu()
        more = None if bias is None else term.reshape(-1)[at].cpu()
        out[at] = integers.value(total, more, x.dtype).to(x.device)
    return out.view(*x.shape[:-1], n)


def _ranks(op: str, group: Group) -> Ranks | None:
    """The ranks of a group, None of one alone. They need agree on nothing: no plan decides bits."""
    found = group_of(f"exact.{op}", group)
    if found is None:
        return None
    size, index = dist.get_world_size(found), dist.get_rank(found)
    return Ranks(found, size, index, "", PATIENCE) if size > 1 else None


def _gathered(x: torch.Tensor, ranks: Ranks | None) -> torch.Tensor:
    """What every rank holds: [ranks, ...]."""
    return x.unsqueeze(0) if ranks is None else ranks.gather(x)
