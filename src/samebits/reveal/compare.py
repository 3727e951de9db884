"""Whether a function has a tree that is known already: one probe an operation, not a search."""

from __future__ import annotations

import numpy as np
import torch

from samebits.errors import RevealError
from samebits.reveal.operand import Operand, PositiveBox, SignedBox, Terms
from samebits.reveal.oracle import Oracle, PositiveOracle, SignedOracle
from samebits.reveal.probe import reconstruct
from samebits.reveal.tree import Integers, RevealedTree

#: Operations that are looked at in a tree that has more.
MOST_OPERATIONS = 512


def difference(
    operand: Operand,
    tree: RevealedTree,
    *,
    terms: Terms | None = None,
    row: int = 0,
    most: int = MOST_OPERATIONS,
) -> str | None:
    """How the tree of a function differs from `tree`; None if no probe contradicts it.

    For each of its operations (the last ones and a random choice, if there are more than `most`),
    two leaves that should meet there are probed, and random pairs across the tree.

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
            oracle = SignedOracle(operand.leaves, signed.count, signed.capacity)
        else:
            oracle = PositiveOracle(operand.leaves, PositiveBox(operand, terms, row).together)
        pairs = _pairs(tree, most)
        wrong = oracle.contradicted(tree, pairs[:, 0], pairs[:, 1])
        if not wrong.any():
            return None
        i, j = pairs[np.flatnonzero(wrong)[0]].tolist()
        try:
            found = reconstruct(oracle)
        except RevealError as error:
            return f"{i} and {j} do not meet where they should, and {error}"
        where = tree.first_difference(found)
        return f"{found.describe()}, where the contract is {tree.describe()}: {where}"


def _pairs(tree: RevealedTree, most: int) -> Integers:
    rng = np.random.default_rng(0)
    count = len(tree.children)
    chosen = np.arange(count)
    if count > most:
        inner = rng.choice(count - most // 4, most - most // 4, replace=False)
        chosen = np.concatenate([inner, chosen[-(most // 4) :]])
    pairs = [
        (int(tree.below(operands[0])[0]), int(tree.below(operands[-1])[-1]))
        for operands in (tree.children[t] for t in chosen.tolist())
    ]
    i = rng.integers(0, tree.leaves, 32)
    j = (i + rng.integers(1, max(tree.leaves, 2), 32)) % tree.leaves
    return np.array([*pairs, *((a, b) for a, b in zip(i, j, strict=True) if a != b)])
