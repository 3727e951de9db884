"""A bag depends on its own items only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits import bits
from samebits.errors import ShapeError
from samebits.ops.embedding_bag import embedding_bag


@given(
    seed=st.integers(0, 10**6),
    dim=st.integers(1, 40),
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    mode=st.sampled_from(["sum", "mean", "max", "weighted"]),
    last=st.booleans(),
)
def test_bags(
    seed: int, dim: int, lengths: list[int], dtype: torch.dtype, mode: str, last: bool
) -> None:
    g = torch.Generator().manual_seed(seed)
    table = torch.randn(11, dim, generator=g).to(dtype)
    n = sum(lengths)
    items = torch.randint(0, 11, (n,), generator=g)
    edges = torch.tensor([0, *lengths]).cumsum(0)
    weights = torch.randn(n, generator=g).to(dtype) if mode == "weighted" else None
    name = "sum" if mode == "weighted" else mode
    offsets = edges if last else edges[:-1]
    got = embedding_bag(table, items, offsets, name, weights, last, padding_idx=3)

    for b in range(len(lengths)):
        acc = np.zeros(dim, dtype=np.float32)
        rows = []
        for i in range(int(edges[b]), int(edges[b + 1])):
            if items[i] == 3:
                continue
            row = table[items[i]].float().numpy()
            rows.append(row)
            acc = acc + (row if weights is None else np.float32(weights[i].float()) * row)
        if mode == "max":
            acc = np.max(rows, axis=0) if rows else acc
        if mode == "mean" and rows:
            acc = acc / np.float32(len(rows))
        assert bits.equal(got.out[b], torch.from_numpy(acc).to(dtype)), (b, mode)
        assert int(got.counts[b]) == len(rows)


def test_bad_input() -> None:
    table = torch.zeros(4, 3)
    with pytest.raises(IndexError, match=r"outside 0\.\.3"):
        embedding_bag(table, torch.tensor([4]), torch.tensor([0]))
    with pytest.raises(IndexError, match="ascend"):
        embedding_bag(table, torch.tensor([1, 2]), torch.tensor([0, 2, 1]))
    with pytest.raises(ShapeError, match="mode"):
        embedding_bag(table, torch.tensor([1]), torch.tensor([0]), "median")
