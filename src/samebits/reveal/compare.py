"""Whether a function has a tree that is known already: one probe an operation, not a search."""

from __future__ import annotations

import numpy as np
import torch

from samebits.errors import RevealError
from samebits.reveal.operand import Operand, SignedBox
from samebits.reveal.oracle import Oracle, PositiveOracle, SignedOracle
from samebits.reveal.positive import PositiveBox, Terms
from samebits.reveal.probe import reconstruct
from samebits.reveal.tree import Integers, RevealedTree

#: Operations that are looked at in a tree that has more, and random pairs.
MOST_OPERATIONS = 512
_PAIRS = 32


def difference(
    operand: Operand,
    tree: RevealedTree,
    *,
    terms: Terms | None = None,
    row: int = 0,
    most: int = MOST_OPERATIONS,
) -> str | None:
    """How the tree of a function differs from `tree`; None if no probe contradicts it.

    Each of its operations is probed (the last ones and a random choice, if there are more than
    `most`), which proves a tree of additions if it is all, and random pairs across the tree.

    Args:
        operand: the function.
        tree: what it should be.
        terms: the terms of a sum of positive terms.
        row: the row of results that is looked at.
        most: operations that are looked at.

    Raises:
        RevealError: the function is no sum of its addends.
    """
    with torch.no_grad():
        oracle: Oracle
        if terms is None:
            signed = SignedBox(operand, row)
            oracle = SignedOracle(
                operand.leaves, signed.count, signed.capacity, slots=len(signed.columns)
            )
        else:
            oracle = PositiveOracle(operand.leaves, PositiveBox(operand, terms, row).together)
        nodes, pairs = _some(tree, most)
        ordered, start = tree.spans
        ends = [[tree.children[node - tree.leaves][end] for end in (0, -1)] for node in nodes]
        wrong = [
            *ordered[start[ends]][oracle.misplaced(tree, nodes)].tolist(),
            *pairs[oracle.contradicted(tree, pairs[:, 0], pairs[:, 1])].tolist(),
        ]
        if not wrong:
            return None
        i, j = wrong[0]
        try:
            found = reconstruct(oracle)
        except RevealError as error:
            return f"{i} and {j} do not meet where they should, and {error}"
        where = tree.first_difference(found)
        return f"{found.describe()}, where the contract is {tree.describe()}: {where}"


def _some(tree: RevealedTree, most: int) -> tuple[Integers, Integers]:
    """Operations, and random pairs of leaves [P, 2]."""
    rng = np.random.default_rng(0)
    count = len(tree.children)
    chosen = np.arange(count)
    if count > most:
        inner = rng.choice(count - most // 4, most - most // 4, replace=False)
        chosen = np.concatenate([inner, chosen[-(most // 4) :]])
    i = rng.integers(0, tree.leaves, _PAIRS)
    j = (i + rng.integers(1, max(tree.leaves, 2), _PAIRS)) % tree.leaves
    return chosen + tree.leaves, np.stack([i, j], 1)[i != j]
