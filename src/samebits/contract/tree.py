"""Reduction trees as data: in which order the terms of a sum along k meet.

Floating-point addition is not associative, so the tree *is* the result's bits (together with the
arithmetic of its nodes). Five shapes, which nest, cover every operation of this project::

    chain                                      one leaf, k ascending
    lanes(16)                                  16 chains of stride 16, folded 8-4-2-1
    lanes(1024, neighbours)                    1024 chains of stride 1024, (l0 + l1) + (l2 + l3) ...
    split(4)                                   4 equal contiguous leaves, ((p0 + p1) + p2) + p3
    segment(128)                               leaves of 128, folded ascending
    balanced(4)                                4 equal contiguous leaves, (p0 + p1) + (p2 + p3)
    segment(1024) of lanes(16) folded pairwise

What is not here cannot matter: no tile, thread, warp, batch size or machine.

A tree says nothing about a length; `cut` and `expand` apply it to one. Every index is absolute, so
that a leaf holds the same elements whatever is computed beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypeVar

from samebits.errors import ContractError

#: Edges of the leaves of `split` and `balanced` are multiples of this: a cache line of fp8, a whole
#: number of tensor-core blocks of every type.
LEAF_EDGE = 128

Fold = Literal["ascending", "pairwise"]
LaneFold = Literal["halves", "neighbours"]
T = TypeVar("T")


@dataclass(frozen=True)
class Chain:
    """One leaf: the accumulator starts at +0 and takes the products in ascending order of k."""

    def __str__(self) -> str:
        return "chain"


CHAIN = Chain()


@dataclass(frozen=True)
class Lanes:
    """`width` interleaved chains: lane l takes k = l, l + width, ... from +0.

    Every lane takes the same number of steps; where k runs past the end, both operands are +0 (so
    a lane may see fma(+0, +0, acc), which turns -0 into +0).

    fold "halves": lane i += lane i + width / 2 for the lower half, and so on down to one: for 16
    lanes the fold is 8-4-2-1.
    fold "neighbours": lane 2i += lane 2i + 1, then the same with what is left. This is the order
    of a GPU: first inside a thread that loaded neighbours, then inside a warp, then across warps.

    Raises:
        ContractError: `width` is no power of two >= 2, or an unknown fold.
    """

    width: int = 16
    fold: LaneFold = "halves"

    def __post_init__(self) -> None:
        _need_power_of_two("lanes", self.width)
        if self.fold not in ("halves", "neighbours"):
            raise ContractError(f"fold {self.fold!r} is not known: use 'halves' or 'neighbours'")

    def __str__(self) -> str:
        return (
            f"lanes({self.width})" if self.fold == "halves" else f"lanes({self.width}, neighbours)"
        )


@dataclass(frozen=True)
class Segment:
    """Leaves of `length` consecutive k (the last one may be shorter), then a fold.

    fold "ascending": ((p0 + p1) + p2) + ..., every + an IEEE fp32 addition.
    fold "pairwise": the order of a binary counter. Equal-sized neighbours are added first; what is
    left over at the end is added from the smallest to the largest, the earlier part on the left.
    For a power of two leaves that is the balanced tree.

    Raises:
        ContractError: `length` < 1, or an unknown fold.
    """

    length: int
    leaf: Tree = CHAIN
    fold: Fold = "ascending"

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ContractError(f"segment({self.length}): a leaf holds at least one element")
        if self.fold not in ("ascending", "pairwise"):
            raise ContractError(f"fold {self.fold!r} is not known: use 'ascending' or 'pairwise'")

    def __str__(self) -> str:
        pairwise = " folded pairwise" if self.fold == "pairwise" else ""
        return f"segment({self.length}){_of(self.leaf)}{pairwise}"


@dataclass(frozen=True)
class Split:
    """`parts` equal contiguous leaves, folded in ascending order.

    Equal means: K is cut every ceil(K / (parts * 128)) * 128 elements. So edges are multiples of
    128, the last leaf may be shorter, and when K is small there are fewer leaves than `parts`.
    The number of leaves is a function of K alone.

    Raises:
        ContractError: `parts` is no power of two >= 2.
    """

    parts: int
    leaf: Tree = CHAIN

    def __post_init__(self) -> None:
        _need_power_of_two("split", self.parts)

    @property
    def fold(self) -> Fold:
        return "ascending"

    def __str__(self) -> str:
        return f"split({self.parts}){_of(self.leaf)}"


@dataclass(frozen=True)
class Balanced:
    """The leaves of `split(parts)`, folded as a binary tree: (p0 + p1) + (p2 + p3).

    When K is a multiple of parts * 128, a contiguous 1/n of K (n a power of two <= parts) is a
    whole subtree: the same bits for every tensor-parallel size that divides `parts`.

    Raises:
        ContractError: `parts` is no power of two >= 2.
    """

    parts: int
    leaf: Tree = CHAIN

    def __post_init__(self) -> None:
        _need_power_of_two("balanced", self.parts)

    @property
    def fold(self) -> Fold:
        return "pairwise"

    def __str__(self) -> str:
        return f"balanced({self.parts}){_of(self.leaf)}"


Tree = Chain | Lanes | Segment | Split | Balanced
Leaf = Chain | Lanes


def _need_power_of_two(name: str, n: int) -> None:
    if not isinstance(n, Integral) or n < 2 or n & (n - 1):
        raise ContractError(f"{name}({n}): use a power of two, at least 2")


def _of(leaf: Tree) -> str:
    if leaf == Chain():
        return ""
    return f" of {leaf}" if isinstance(leaf, Chain | Lanes) else f" of ({leaf})"


def cut(tree: Segment | Split | Balanced, start: int, stop: int) -> list[tuple[int, int]]:
    """The [start, stop) of each leaf of `tree` over elements [start, stop); never empty."""
    length = stop - start
    if isinstance(tree, Segment):
        step = tree.length
    else:
        step = -(-length // (tree.parts * LEAF_EDGE)) * LEAF_EDGE
    edges = range(start, stop, step) if length else range(start, start + 1)
    return [(edge, min(edge + step, stop)) for edge in edges]


def fold(parts: list[T], order: Fold, add: Callable[[T, T], T]) -> T:
    """Folds at least one part in the given order; `add(earlier, later)` joins two."""
    if order == "ascending":
        acc = parts[0]
        for part in parts[1:]:
            acc = add(acc, part)
        return acc
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1  # the largest power of two below the length
    return add(fold(parts[:half], order, add), fold(parts[half:], order, add))


def reduce(
    tree: Tree, start: int, stop: int, leaf: Callable[[Leaf, int, int], T], add: Callable[[T, T], T]
) -> T:
    """Walks `tree` over [start, stop): `leaf` gives the value of a leaf, `add` folds two values."""
    if isinstance(tree, Chain | Lanes):
        return leaf(tree, start, stop)
    parts = [reduce(tree.leaf, a, b, leaf, add) for a, b in cut(tree, start, stop)]
    return fold(parts, tree.fold, add)


# ---- explicit form -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A chain over k = start, start + step, ...: `steps` steps; those from stop on are padding."""

    start: int
    stop: int
    step: int
    steps: int

    @property
    def indices(self) -> range:
        """The elements that the run really holds."""
        return range(self.start, self.stop, self.step)[: self.steps]


@dataclass(frozen=True)
class Add:
    """An IEEE fp32 addition of two subtrees."""

    left: Node
    right: Node


Node = Run | Add
#: A tree down to its elements: an index, or a tuple of subtrees that meet in one operation.
Nested = int | tuple["Nested", ...]


def expand(tree: Tree, k: int) -> Node:
    """The explicit tree over `k` elements: runs (chains) joined by additions.

    Raises:
        ContractError: `k` is negative.
    """
    if k < 0:
        raise ContractError(f"a reduction over {k} elements does not exist")

    def leaf(kind: Leaf, start: int, stop: int) -> Node:
        if isinstance(kind, Chain):
            return Run(start, stop, 1, stop - start)
        width = kind.width
        steps = -(-(stop - start) // width)
        lanes: list[Node] = [Run(start + i, stop, width, steps) for i in range(width)]
        while len(lanes) > 1:
            half = len(lanes) // 2
            if kind.fold == "halves":
                lanes = [Add(lanes[i], lanes[i + half]) for i in range(half)]
            else:
                lanes = [Add(lanes[2 * i], lanes[2 * i + 1]) for i in range(half)]
        return lanes[0]

    return reduce(tree, 0, k, leaf, Add)


def runs(node: Node) -> list[Run]:
    """All runs of an explicit tree, from left to right."""
    found, stack = [], [node]
    while stack:
        top = stack.pop()
        if isinstance(top, Add):
            stack += [top.right, top.left]
        else:
            found.append(top)
    return found


def nested(node: Node, block: int = 1) -> Nested | None:
    """The tree down to its elements, in the form that probing a black box gives.

    `block` products meet in one step of a run (1 for fma, 16 for a Hopper bf16 instruction). With
    block 1 a run of 0..3 is (((0, 1), 2), 3); with 16 one of 0..31 is ((0, ..., 15), 16, ..., 31).
    Empty runs, padding and the accumulator's +0 leave no trace. Subtrees of one operation are
    ordered by their smallest element, since addition commutes. None when there is no element.
    """
    if isinstance(node, Run):
        acc: Nested | None = None
        indices = node.indices
        for i in range(0, len(indices), block):
            step = tuple(indices[i : i + block])
            terms: tuple[Nested, ...] = step if acc is None else (acc, *step)
            acc = terms if len(terms) > 1 else terms[0]
        return acc
    left, right = nested(node.left, block), nested(node.right, block)
    if left is None or right is None:
        return left if right is None else right
    return (left, right) if _first(left) < _first(right) else (right, left)


def _first(tree: Nested) -> int:
    while isinstance(tree, tuple):
        tree = tree[0]
    return tree
