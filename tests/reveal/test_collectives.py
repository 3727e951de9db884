"""all-reduce over gloo: every rank holds one leaf."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from samebits.reveal import reveal

RANKS = 4


def rank_of(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    try:
        found = reveal("all_reduce", k=RANKS, n=8)
        if rank == 0:
            Path(folder, "tree").write_text(found.tree.to_json())
    finally:
        distributed.destroy_process_group()


@pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")
def test_the_order_of_ranks_is_revealed(tmp_path: Path) -> None:
    from samebits.reveal import RevealedTree

    multiprocessing.spawn(rank_of, (str(tmp_path),), RANKS)
    tree = RevealedTree.from_json(Path(tmp_path, "tree").read_text())
    assert tree.leaves == RANKS
    assert all(len(operands) == 2 for operands in tree.children)
