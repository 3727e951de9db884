"""A tree with an arithmetic, computed: what a kernel must give if it is what the probes say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from samebits.contract import numerics as nx
from samebits.contract.arithmetic import Arithmetic, BlockFma
from samebits.contract.block import fused_block
from samebits.contract.numerics import Array
from samebits.reveal.tree import RevealedTree

#: IEEE additions, rounded to nearest even, by their significant bits.
ADDITIONS: dict[int, Callable[[Array, Array], Array]] = {
    8: lambda a, b: nx.round_to(nx.add32(a, b), "bf16"),
    11: lambda a, b: nx.round_to(nx.add32(a, b), "fp16"),
    24: nx.add32,
    53: lambda a, b: np.add(a, b, dtype=np.float64),
}
#: Types of these widths.
NAMES = {8: "bf16", 11: "fp16", 24: "fp32", 53: "fp64"}


def replay(
    tree: RevealedTree, addends: Array, arithmetic: Arithmetic | None = None, bits: int = 24
) -> Array:
    """The sums of rows of addends along a tree, operation by operation.

    A chain's fused operations take their largest operand as the accumulator. Operations of two
    operands, none of which is a single leaf, are IEEE additions: folds.

    Args:
        tree: the tree.
        addends: [P, leaves] fp32 (fp64 for 53 bits), values of the arithmetic's input type.
        arithmetic: of the fused operations; IEEE additions if None.
        bits: significant bits of IEEE additions, one of `ADDITIONS`.

    Returns:
        [P], fp64 for 53 bits and else fp32.
    """
    n, add = tree.leaves, ADDITIONS[bits]
    values: list[Array | None] = [np.ascontiguousarray(column) for column in addends.T]
    for operands in tree.children:
        terms: list[Array] = []
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
                acc = add(acc, term)
            values.append(acc)
    root = values[-1]
    assert root is not None
    return root


def _block(
    operands: tuple[int, ...], terms: list[Array], leaves: int, arithmetic: BlockFma
) -> Array:
    inner = [t for c, t in zip(operands, terms, strict=True) if c >= leaves]
    single = np.stack([t for c, t in zip(operands, terms, strict=True) if c < leaves], 1)
    acc = inner[0] if inner else np.zeros(len(single), np.float32)
    for other in inner[1:]:
        acc = nx.add32(acc, other)
    one = np.ones((1, single.shape[1]), np.float32)
    return np.asarray(fused_block(single, one, acc[:, None], arithmetic)[:, 0], np.float32)
