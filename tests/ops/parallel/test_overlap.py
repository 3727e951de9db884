"""Rows whose partial sums travel while others are computed: all of them, once, in a good order."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from samebits.ops.parallel import overlap
from samebits.ops.parallel.ranks import Ranks


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("count", [64, 1000, 1023, 8192])
def test_every_row_goes_once_to_the_rank_that_folds_it(count: int, size: int) -> None:
    share = -(-count // size)
    for index in range(size):
        made = overlap.pieces(count, size, index)
        rows = sorted(row for piece in made for row in range(piece.start, piece.stop))
        own = range(index * share, min((index + 1) * share, count))
        assert rows == [row for row in range(count) if row not in own]
        assert all(row // share == p.rank for p in made for row in (p.start, p.stop - 1))
        assert made[0].rank == (index + 1) % size


def test_two_ranks_send_the_first_rows_early() -> None:
    assert overlap.pieces(8192, 2, 0) == [(1, 4096, 6144), (1, 6144, 8192)]
    assert overlap.pieces(1026, 2, 1) == [(0, 0, 513)]


def test_it_is_not_done_on_a_cpu() -> None:
    alone = Ranks(dist.ProcessGroup(0, 2), 2, 0, "", 1.0)

    def product(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing is computed")

    assert overlap.row_parallel(alone, torch.ones(4096, 8), 4096, None, product) is None
