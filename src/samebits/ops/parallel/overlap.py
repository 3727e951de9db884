"""Row-parallel products of many rows whose partial sums travel while others are computed.

A rank begins with the rows that other ranks fold. Copy engines carry their partial sums over NVLink
beside the products of the next rows; its own rows come last. Then the shares are folded, and only
rounded results still have to travel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from samebits.ops.parallel.peers import peers_of
from samebits.ops.parallel.ranks import Ranks

#: From how many results on it is the faster way, and rows of a share: as timed on two H200.
FROM, LEAST = 1 << 22, 512
#: The rows of other ranks are computed in so many pieces, of `LEAST` or more rows each, so that the
#: first leave early.
PIECES = 2


class Piece(NamedTuple):
    """Rows start .. stop - 1, which `rank` folds."""

    rank: int
    start: int
    stop: int


def pieces(count: int, size: int, index: int) -> list[Piece]:
    """All rows of `count` that other ranks fold, in the order in which rank `index` computes them.

    Ranks begin with the next one, so that no two send to the same one.
    """
    share = -(-count // size)
    step = -(-share // max(1, min(PIECES // (size - 1), share // LEAST)))
    found = []
    for rank in ((index + other) % size for other in range(1, size)):
        stop = min((rank + 1) * share, count)
        starts = range(rank * share, stop, step)
        found += [Piece(rank, start, min(start + step, stop)) for start in starts]
    return found


def row_parallel(
    ranks: Ranks,
    x: torch.Tensor,
    features: int,
    bias: torch.Tensor | None,
    product: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor | None:
    """[M, N]: the sum of all ranks' products, as `join` gives it; None where it is not done.

    Args:
        x: [M, K / ranks].
        features: N.
        bias: [N], dtype of x, contiguous; or None.
        product: [R, N] fp32 partial sums of rows of x.
    """
    count, share = x.shape[0], -(-x.shape[0] // ranks.size)
    if not x.is_cuda or count * features < FROM or share < LEAST:
        return None
    if (ranks.size - 1) * share >= count:  # the last one has none
        return None
    from samebits.engines.cuda.peer.join import MOST

    out = x.new_empty(count, features)
    peers = peers_of(ranks, out) if out.numel() <= MOST else None
    if peers is None:
        return None
    side, main = _side(x.device), torch.cuda.current_stream(x.device)
    sent = []  # memory of what travels is not given to others before the join
    for rank, start, stop in pieces(count, ranks.size, ranks.index):
        sent.append(product(x[start:stop]))
        side.wait_stream(main)
        with torch.cuda.stream(side):
            peers.push(sent[-1], rank, (start - rank * share) * features, share * features)
    own = product(x[ranks.index * share :][:share])
    main.wait_stream(side)
    return peers.join_pushed(own, bias, out, share * features)


@functools.cache
def _side(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
