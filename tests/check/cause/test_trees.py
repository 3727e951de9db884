"""The trees of a product in both runs stand beside the cause, where `reveal` can see them."""

from __future__ import annotations

import torch
from planted import Product, Stack, values
from torch import nn

from samebits.check import explain


def test_stock_products_are_told_by_their_trees() -> None:
    """Which sizes differ depends on the machine's library; where they do, so do the trees."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).requires_grad_(False)
    x = values(16, 512)
    found = explain(model, x[:1], x, align=(0, 0))
    if found.verdict == "equal":
        return
    assert found.kind == "reordering"
    first, second = found.trees
    assert first.startswith("1 row: ") and second.startswith("16 rows: ")
    assert first.partition(": ")[2] != second.partition(": ")[2]


def test_a_kernel_of_another_library_has_none() -> None:
    x = values(9, 128)
    found = explain(Stack(Product("split_k", 9)), x[:1], x, align=(0, 0))
    assert found.kind == "reordering" and found.trees == ()
