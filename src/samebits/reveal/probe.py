"""From answers to a tree: FPRev's recursion, with fused operations and with regularity made use of.

`reconstruct` looks from one leaf, the pivot, at all others: those that meet it in the same
operation form a group, which holds one subtree, or several if the operation is a fused one. Groups
are taken apart in the same way. A subtree whose leaves are those of a known one, moved by a
constant, is taken to be its copy; every operation with leaves of a copy, and random pairs across
the tree, are verified by probes afterwards. If one is contradicted, everything is probed without
such guesses, and all of it is verified.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from samebits.errors import RevealError
from samebits.reveal.oracle import Oracle
from samebits.reveal.tree import Integers, RevealedTree
from samebits.reveal.triples import Bools

#: Pairs that are verified at random across the tree, at most.
RANDOM_PAIRS = 64
#: Pairs of operands of a fused operation up to which all are looked at; of irregular ones, and
#: where nothing else looks at them, so many times the leaves.
FEW, MANY = 10, 16


@dataclass
class _Builder:
    """Subtrees under construction: nodes as in `RevealedTree.of`, with their sorted leaves."""

    oracle: Oracle
    guess: bool
    rng: np.random.Generator
    nodes: list[tuple[int, ...]] = field(default_factory=list)
    known: dict[tuple[bool, bytes], tuple[int, list[int]]] = field(default_factory=dict)
    copies: list[Integers] = field(default_factory=list)

    def join(self, operands: list[int]) -> int:
        if len(operands) == 1:
            return operands[0]
        self.nodes.append(tuple(operands))
        return self.oracle.leaves + len(self.nodes) - 1

    def copy(self, node: int, by: int) -> int:
        """A copy of a subtree with every leaf moved."""
        n = self.oracle.leaves
        made: dict[int, int] = {}
        stack = [node]
        while stack:
            top = stack[-1]
            operands = self.nodes[top - n] if top >= n else ()
            missing = [c for c in operands if c not in made]
            if missing:
                stack += missing
                continue
            stack.pop()
            made[top] = self.join([made[c] for c in operands]) if operands else top + by
        return made[node]

    def guesses(self, leaves: Integers) -> bool:
        """Whether a group of leaves may be taken for a copy of a known one."""
        return self.guess and len(leaves) > 1

    def spine(self, pivot: int, groups: list[Integers]) -> int:
        """The subtree of the pivot and the groups that join it one after another."""
        root, below, size = pivot, [np.array([pivot])], 1
        fused = self.fused(pivot, groups)
        for group, several in zip(groups, fused, strict=True):
            by = None
            if self.guesses(group) and not several and len(group) == size:
                mine = np.sort(np.concatenate(below))
                by = int(group[0] - mine[0]) if np.ptp(group - mine) == 0 else None
            if by is not None:
                children = [self.copy(root, by)]
                self.copies.append(group)
            else:
                most = 2 * len(group) > 1 + sum(map(len, groups))
                children = self.children(group, pivot, several, most=most)
            root = self.join([root, *children])
            below.append(group)
            size += len(group)
        return root

    def fused(self, pivot: int, groups: list[Integers]) -> list[bool]:
        """For each group: whether it is seen to be several operands of one operation.

        One pair is looked at. Not seen does not mean that it is not so.
        """
        pairs = [
            (number, a, b)
            for number, group in enumerate(groups)
            if self.guesses(group)
            for a, b in (self.rng.choice(group, 2, replace=False),)
        ]
        several = np.zeros(len(groups), bool)
        if pairs:
            number, i, j = np.array(pairs).T
            several[number[~self.oracle.excludes(i, j, pivot)]] = True
        return [bool(s) for s in several]

    def children(self, leaves: Integers, outer: int, several: bool, *, most: bool) -> list[int]:
        """The subtrees of a group whose leaves all meet `outer` in one operation.

        Args:
            several: it is seen to be more than one.
            most: the group is most of what was looked at, so its first leaf may tell as little as
                the last pivot did: look from one at random.
        """
        first = int(leaves[0])
        if len(leaves) == 1:
            return [first]
        shape = several, (leaves - first).tobytes()
        if self.guesses(leaves) and shape in self.known:
            start, nodes = self.known[shape]
            self.copies.append(leaves)
            return [self.copy(node, first - start) for node in nodes]
        found = self.explore(leaves, outer, most)
        self.known[shape] = first, found
        return found

    def explore(self, leaves: Integers, outer: int, most: bool) -> list[int]:
        """`children`, by probing."""
        found: list[int] = []
        while len(leaves):
            if found and found[-1] < self.oracle.leaves and self.apart(leaves, outer):
                return [*found, *leaves.tolist()]
            pivot = int(self.rng.choice(leaves) if most else leaves[0])
            groups = self.oracle.order(pivot, leaves[leaves != pivot])
            leaves = leaves[:0]
            if groups:
                nearest = groups[-1][:1]
                if not self.oracle.excludes(np.full_like(nearest, pivot), nearest, outer)[0]:
                    leaves = groups.pop()
            found.append(self.spine(pivot, groups))
        return found

    def apart(self, leaves: Integers, outer: int) -> bool:
        """Whether all leaves seem to enter the fused operation one by one, as the last one did."""
        if len(leaves) == 1 or not self.guess:
            return len(leaves) == 1
        even = np.ptp(np.diff(leaves)) == 0  # as the leaves of a block are
        most = MANY * self.oracle.leaves if self.oracle.thorough or not even else FEW
        if len(leaves) * (len(leaves) - 1) // 2 <= most:
            i, j = _all_pairs(leaves).T
        else:
            mixed = self.rng.permutation(leaves)
            i, j = mixed[:-1], mixed[1:]
        return not self.oracle.excludes(i, j, outer).any()


def reconstruct(oracle: Oracle, *, seed: int = 0, guess: bool = True) -> RevealedTree:
    """The tree that the oracle's answers describe.

    Without guesses every pair of leaves of a fused operation is looked at.

    Raises:
        RevealError: they describe none.
    """
    rng = np.random.default_rng(seed)
    for guessing in (True, False) if guess else (False,):
        builder = _Builder(oracle, guessing, rng)
        everything = np.arange(oracle.leaves)
        root = builder.spine(0, oracle.order(0, everything[1:]) if oracle.leaves > 1 else [])
        tree = RevealedTree.of(oracle.leaves, builder.nodes) if root else RevealedTree.of(1, [])
        nodes = np.arange(oracle.leaves, oracle.leaves + len(tree.children))
        if guessing and not oracle.thorough:
            nodes = nodes[_touched(tree, builder.copies)]
        if not contradicted(oracle, tree, nodes, rng):
            return tree
    raise RevealError(
        "a tree was found, but further probes contradict it: the order of additions depends on the "
        "values or varies between runs, or its operations round in different ways"
    )


def contradicted(
    oracle: Oracle, tree: RevealedTree, nodes: Integers, rng: np.random.Generator
) -> bool:
    """Whether a probe contradicts the tree: at some operations, and at random across the tree."""
    if tree.leaves < 3:
        return False
    some = min(RANDOM_PAIRS, tree.leaves // 16)
    i = rng.integers(0, tree.leaves, some)
    j = (i + rng.integers(1, tree.leaves, some)) % tree.leaves
    return bool(oracle.contradicted(tree, i, j).any() or oracle.misplaced(tree, nodes).any())


def _touched(tree: RevealedTree, copies: list[Integers]) -> Bools:
    """Which operations have leaves of a copy below them."""
    touched = np.zeros(tree.leaves + len(tree.children), bool)
    for leaves in copies:
        touched[leaves] = True
    for node, operands in enumerate(tree.children, tree.leaves):
        touched[node] = touched[list(operands)].any()
    return touched[tree.leaves :]


def _all_pairs(leaves: Integers) -> Integers:
    return np.stack([leaves[side] for side in np.triu_indices(len(leaves), 1)], 1)
