"""A defect behind a reordering: both are named, and the runs are not called clean."""

from __future__ import annotations

import planted
import pytest
import torch
from planted import WIDTH, values
from torch import Tensor, nn

import samebits as sb
from samebits.check import Explanation, explain
from samebits.mode import is_on, stock


@torch.library.custom_op("hidden::product", mutates_args=())
def product(x: Tensor, w: Tensor) -> Tensor:
    """x w^T, in two parts below 8 rows; as a stock kernel that the switch replaces."""
    whole = len(x) >= 8 or is_on()
    with stock():
        return planted._rows(x, w) if whole else planted._halves(x, w)


@torch.library.custom_op("hidden::stubborn", mutates_args=())
def stubborn(x: Tensor, w: Tensor) -> Tensor:
    """The same, whatever the switch says."""
    with stock():
        return planted._rows(x, w) if len(x) >= 8 else planted._halves(x, w)


class Hiding(nn.Module):
    """A product whose order follows the number of rows, and something behind it."""

    def __init__(self, behind: str, stubborn: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(values(WIDTH, WIDTH, seed=1) / WIDTH**0.5)
        self.behind, self.stubborn = behind, stubborn
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        op = stubborn if self.stubborn else product
        h: Tensor = op(x, self.weight)
        if self.behind == "random":
            h = self.drop(h)
        elif self.behind == "semantics":  # room for a quarter of the batch
            kept = torch.zeros(len(h), dtype=torch.bool)
            kept[h[:, 0].topk(max(1, len(h) // 4)).indices] = True
            h = torch.where(kept[:, None], h, x)
        elif self.behind == "scale":
            h = h / h.abs().amax()
        return h


def found_in(model: nn.Module) -> Explanation:
    """A request alone, and among 15 others."""
    x = values(16, WIDTH)
    row = int((x @ values(WIDTH, WIDTH, seed=1).T)[:, 0].argmin())  # there is no room for it
    return explain(model, (x[row : row + 1],), (x,), align=(0, row))


@pytest.mark.parametrize("behind", ["random", "semantics", "scale"])
def test_a_defect_behind_a_reordering_is_named(behind: str) -> None:
    found = found_in(Hiding(behind))
    assert found.place is not None and found.place.op == "hidden.product.default"
    assert found.kind == "reordering" and found.rest is not None, found
    assert found.rest.kind == behind and not found.allowed, found.rest
    assert "hides another difference" in found.should and found.rest.cause in str(found)
    assert Explanation.from_json(found.to_json()) == found


def test_a_reordering_alone_hides_nothing() -> None:
    found = found_in(Hiding(""))
    assert (found.kind, found.rest, found.allowed) == ("reordering", None, True), found
    assert "the bits are equal" in found.should


def test_an_order_that_the_switch_does_not_know_stays() -> None:
    found = found_in(Hiding("", stubborn=True))
    assert found.rest is not None and (found.rest.kind, found.allowed) == ("reordering", True)
    assert "the switch does not change it" in found.should


@pytest.mark.parametrize("behind", ["random", "semantics", "scale"])
def test_runs_are_explained_with_the_switch_on(behind: str) -> None:
    """What judges results computes in binary64, which the switch refuses to others."""
    with sb.deterministic():
        found = found_in(Hiding(behind))
    assert (found.kind, found.rest) == (behind, None), found
