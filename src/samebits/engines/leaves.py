"""Trees over k as the kernels of matrix products see them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from samebits.contract.tree import Chain, Lanes, Tree, cut
from samebits.errors import ContractError


@dataclass(frozen=True)
class Leaves:
    """Chains that are folded.

    Attributes:
        count: how many.
        length: of every leaf but the last, which may be shorter.
        pairwise: neighbours are folded first; else ascending. Two leaves fold alike either way.
    """

    count: int
    length: int
    pairwise: bool


@lru_cache(maxsize=4096)
def leaves_of(tree: Tree, k: int) -> Leaves:
    """How `tree` cuts k.

    Raises:
        ContractError: its leaves are no chains.
    """
    if isinstance(tree, Chain):
        return Leaves(1, k, False)
    if isinstance(tree, Lanes) or not isinstance(tree.leaf, Chain):
        raise ContractError(f"matrix products on a GPU have no tree {tree}: use leaves of chains")
    edges = cut(tree, 0, k)
    return Leaves(len(edges), edges[0][1] if k else 0, tree.fold == "pairwise" and len(edges) > 2)
