"""A tree with an arithmetic, computed: what a kernel must give if it is what the probes say."""

from __future__ import annotations

import numpy as np

from samebits.contract import numerics as nx
from samebits.contract.arithmetic import Arithmetic, BlockFma
from samebits.contract.block import fused_block
from samebits.contract.numerics import F32
from samebits.reveal.tree import RevealedTree


def replay(tree: RevealedTree, addends: F32, arithmetic: Arithmetic | None = None) -> F32:
    """The sums of rows of addends along a tree, operation by operation.

    A chain's fused operations take their largest operand as the accumulator. Operations of two
    operands, none of which is a single leaf, are IEEE fp32 additions: folds.

    Args:
        tree: the tree.
        addends: [P, leaves] fp32, values of the arithmetic's input type.
        arithmetic: of the fused operations; IEEE fp32 additions if None.

    Returns:
        [P] fp32.
    """
    n = tree.leaves
    values: list[F32 | None] = [np.ascontiguousarray(column) for column in addends.T]
    for operands in tree.children:
        terms: list[F32] = []
        for c in operands:
            value = values[c]
            assert value is not None
            terms.append(value)
            values[c] = None
        blocks = isinstance(arithmetic, BlockFma) and min(operands) < n
        if blocks:
            assert isinstance(arithmetic, BlockFma)
            values.append(_block(operands, terms, n, arithmetic))
        else:
            acc = terms[0]
            for term in terms[1:]:
                acc = nx.add32(acc, term)
            values.append(acc)
    root = values[-1]
    assert root is not None
    return root


def _block(operands: tuple[int, ...], terms: list[F32], leaves: int, arithmetic: BlockFma) -> F32:
    inner = [t for c, t in zip(operands, terms, strict=True) if c >= leaves]
    single = np.stack([t for c, t in zip(operands, terms, strict=True) if c < leaves], 1)
    acc = inner[0] if inner else np.zeros(len(single), np.float32)
    for other in inner[1:]:
        acc = nx.add32(acc, other)
    one = np.ones((1, single.shape[1]), np.float32)
    return np.asarray(fused_block(single, one, acc[:, None], arithmetic)[:, 0], np.float32)
