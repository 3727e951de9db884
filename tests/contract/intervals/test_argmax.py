"""certified_argmax: it never calls a token certain that some order does not choose."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from samebits.contract import Chain, LinearContract, Segment, Split, dot, hopper_mma
from samebits.contract import numerics as nx
from samebits.contract.intervals import Interval, certified_argmax
from samebits.errors import ShapeError


def interval(first: list[list[float]], last: list[list[float]]) -> Interval:
    a, b = np.array(first), np.array(last)
    return Interval(a, b, a, b)


def test_by_hand() -> None:
    logits = np.array([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [2.0, 2.0, 0.0], [2.0, 2.0, 0.0]])
    i = interval(
        [[0.9, 2.5, 1.9], [0.9, 2.5, 1.9], [2.0, 2.0, 0.0], [1.9, 2.0, 0.0]],
        [[1.1, 3.5, 2.1], [1.1, 3.5, 2.6], [2.0, 2.0, 0.0], [2.0, 2.0, 0.0]],
    )
    found = certified_argmax(logits, i)
    assert found.token.tolist() == [1, 1, 0, 0]
    assert found.certain.tolist() == [True, False, True, False]  # a tie goes to the lower index
    assert found.rivals.tolist() == [0, 1, 0, 1]
    assert found.slack[:2] == pytest.approx([0.4, -0.1])


def test_the_lower_index_wins_a_tie() -> None:
    tie = interval([[1.0, 2.0]], [[2.0, 2.0]])
    assert not certified_argmax(np.array([[1.5, 2.0]]), tie).certain[0]


def test_nan_and_infinity_are_not_certain() -> None:
    wide = interval([[-np.inf, -np.inf]], [[np.inf, np.inf]])
    found = certified_argmax(np.array([[1.0, np.nan]]), wide)
    assert found.token[0] == -1 and not found.certain[0]
    assert not certified_argmax(np.array([[1.0, 2.0]]), wide).certain[0]
    one = certified_argmax(np.array([[7.0]]), interval([[7.0]], [[7.0]]))
    assert one.certain[0] and one.slack[0] == np.inf


@pytest.mark.parametrize("logits", [[5.0, 0.0], [9.0, 0.0], [6.5, 1.0], [6.5, -1.0]])
def test_logits_outside_their_interval_are_not_certain(logits: list[float]) -> None:
    """Such an interval is of other logits, and says nothing about these."""
    i = interval([[6.0, 0.0]], [[7.0, 0.5]])
    found = certified_argmax(np.array([logits]), i)
    assert not found.certain[0] and found.outside[0] == 1
    inside = certified_argmax(np.array([[6.5, 0.0]]), i)
    assert inside.certain[0] and inside.outside[0] == 0


@pytest.mark.parametrize("shape", [(3,), (2, 4), (0,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="logits"):
        certified_argmax(np.zeros(shape), interval([[0.0]], [[0.0]]))


@pytest.mark.parametrize("order", ["split", "any"])
def test_no_order_chooses_another_token(order: str) -> None:
    """Logits with many near ties: some rows are certain, no certain row ever flips."""
    rng = np.random.default_rng(0)
    x, w = (
        nx.round_to(rng.standard_normal(shape).astype(np.float32), "bf16")
        for shape in ((300, 512), (200, 512))
    )
    w[100:] = w[:100]  # twins that differ in one element, small or large, in the last place
    twins = np.arange(100)
    at = np.abs(w[100:]).argsort(1)[twins, 5 * twins]
    w[100 + twins, at] *= np.float32(1 + 2.0**-7)
    w = nx.round_to(w, "bf16")
    contract = LinearContract(Chain(), hopper_mma("bf16"), "bf16", "bf16")
    i = contract.interval(x, w, order=order)
    y = torch.from_numpy(np.asarray(contract.evaluate(x, w)))
    found = certified_argmax(y, i)
    assert 0.02 < found.certain.mean() < 0.98
    flipped = np.zeros(len(x), bool)
    for tree in (Split(2), Split(4), Segment(128)):
        flipped |= dot(x, w, tree, contract.arithmetic).argmax(-1) != found.token
    assert flipped.any()
    assert not (flipped & found.certain).any()
