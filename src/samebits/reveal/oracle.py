"""Questions that a black-box sum answers about its tree.

All of it rests on *swamping*: beside a mask M that is large enough, a unit is rounded away.

**Signed sums** (FPRev: Xie, Gao, Wang, Xue, "FPRev: revealing the accumulation order", USENIX ATC
2025). M at leaf i, -M at leaf j, units at others: a unit that meets M before M meets -M is lost,
the others are counted by the result. So the result is the number of units outside the smallest
subtree that holds both i and j. The more subtle an output type is, the fewer units it can count:
`capacity` of them, and larger sets are asked about in parts.

**Sums of positive terms** (squares, exponentials) cannot cancel. M at i, and at j and k units of
0.75 half-ulps of M each: alone they are rounded away, together they are one ulp. The result moves
if j and k meet each other before they meet i, and only then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from samebits.errors import RevealError
from samebits.reveal.tree import Integers, RevealedTree
from samebits.reveal.triples import Bools, Triples

#: Elements of a table of units.
_MOST_CELLS = 1 << 26
#: Times the capacity, and the sums of a call, from which on an order is suggested first: that takes
#: fewer probes, but they follow from one another.
_LARGE = 8
#: Pairs of operands of a fused operation that are seen not to meet before the others, at most.
_INSIDE = 1 << 9

#: i [P], j [P], sets of units [U, n], which of them [P] -> units outside of where i and j meet, [P]
Count = Callable[[Integers, Integers, Bools, Integers], Integers]
#: i [P], j [P], k [P] -> whether j and k meet before they meet i, [P]
Together = Callable[[Integers, Integers, Integers], Bools]


class Oracle(Protocol):
    """What reconstruction asks; `probes` counts the questions that reached the black box.

    `thorough` oracles want every operation to be verified, not only those of copies.
    """

    leaves: int
    thorough: bool

    @property
    def probes(self) -> int:
        """Sums that were looked at."""

    def order(self, pivot: int, others: Integers) -> list[Integers]:
        """`others` in groups that meet `pivot` in one operation, the innermost first.

        Raises:
            RevealError: the answers fit no tree.
        """

    def excludes(self, i: Integers, j: Integers, outer: int) -> Bools:
        """Whether `outer` is not below the operation in which i and j meet, [P]."""

    def contradicted(self, tree: RevealedTree, i: Integers, j: Integers) -> Bools:
        """Where i and j do not meet as `tree` says, [P]."""

    def misplaced(self, tree: RevealedTree, nodes: Integers) -> Bools:
        """Which operations are contradicted, [P]; see `_relations` for what none of all proves."""


def _relations(tree: RevealedTree, nodes: Integers) -> list[tuple[Integers, Integers]]:
    """For each operation the first leaf of each of its operands, and of each of its siblings.

    Let R(t) be where the first leaves of t's operands meet in truth. If, for every t, all of them
    are in R(t) and no sibling's is, then R(t) is t: R(t) and R(c), for an operand c, have c's first
    leaf in common, and R(c) lacks a leaf that R(t) has, so R(t) holds R(c), and so all leaves of t;
    and, from the root down, what siblings hold is disjoint, so there is room for no more.
    So one or two probes an operation prove a tree, but for what may be inside fused operations.
    """
    ordered, start = tree.spans
    first, found = ordered[start], []
    for node in nodes.tolist():
        parent = int(tree.parents[node])
        around = tree.children[parent - tree.leaves] if parent != node else ()
        operands = tree.children[node - tree.leaves]
        found.append((first[list(operands)], first[[c for c in around if c != node]]))
    return found


def _tree_error(detail: str) -> RevealError:
    return RevealError(
        f"the answers fit no tree: {detail}. Either the order of additions depends on the values "
        "or varies between runs, or the sum is wider than fp32 or compensated"
    )


class SignedOracle(Triples):
    """Answers from counts of units that escape a mask and its negative.

    Args:
        leaves: number of addends.
        count: the black box.
        capacity: units that one result can count.
        slots: sums of a call.
    """

    thorough = False

    def __init__(
        self, leaves: int, count: Count, capacity: int, seed: int = 0, *, slots: int = 1
    ) -> None:
        self.leaves, self.capacity, self._slots = leaves, capacity, slots
        self.probes = 0
        self._count = count
        self._rng = np.random.default_rng(seed)

    def _outside(self, i: Integers, j: Integers, units: Bools, which: Integers) -> Integers:
        self.probes += len(i)
        return self._count(i, j, units, which)

    def _each(self, i: Integers, j: Integers, chosen: Sequence[Integers]) -> Integers:
        """`_outside` with units of its own for every probe."""
        found = [np.zeros(0, np.int64)]
        together = max(1, _MOST_CELLS // self.leaves)
        for at in range(0, len(chosen), together):
            part = slice(at, at + together)
            units = np.stack([self._mask(leaves) for leaves in chosen[part]])
            found.append(self._outside(i[part], j[part], units, np.arange(len(units))))
        return np.concatenate(found)

    def _together(self, i: Integers, j: Integers, k: Integers) -> Bools:
        if len(i) and (i == i[0]).all():
            kept: Bools = self._outside(j, k, self._mask(i[:1])[None], np.zeros_like(j)) == 1
            return kept
        apart: Bools = self._each(j, k, list(i[:, None])) == 1
        return apart

    def _mask(self, chosen: npt.ArrayLike) -> Bools:
        mask = np.zeros(self.leaves, bool)
        mask[np.asarray(chosen)] = True
        return mask

    def order(self, pivot: int, others: Integers) -> list[Integers]:
        """See `Oracle`. |others| probes, a few more beyond the capacity where it is regular.

        A cell is a stretch of the order that is not known further. A small one is asked about with
        units on all its leaves, a large one with units on a sample, which cuts it into cells.
        """
        if len(others) > min(self.capacity**2, _LARGE * max(self.capacity, self._slots)):
            regular = self._regular(pivot, others)
            if regular is not None:
                return regular
        cells, done = [others], [len(others) < 2]
        while not all(done):
            asked = [c for c, finished in zip(cells, done, strict=True) if not finished]
            samples = [self._some(cell, self.capacity) for cell in asked]
            found = iter(self._cut(pivot, asked, samples))
            new = [
                [(cell, True)] if finished else next(found)
                for cell, finished in zip(cells, done, strict=True)
            ]
            cells = [cell for part in new for cell, _ in part]
            done = [finished for part in new for _, finished in part]
        return [cell for cell in cells if len(cell)]

    def _cut(
        self, pivot: int, cells: list[Integers], samples: list[Integers]
    ) -> list[list[tuple[Integers, bool]]]:
        """Each cell as cells in order, and whether a cell is known to be a group."""
        masks = np.stack([self._mask(sample) for sample in samples])
        leaves = np.concatenate(cells)
        which = np.repeat(np.arange(len(cells)), [len(cell) for cell in cells])
        outside = self._outside(np.full_like(leaves, pivot), leaves, masks, which)
        parts: list[list[tuple[Integers, bool]]] = []
        unsure: list[tuple[Integers, int, int, int]] = []
        at = 0
        for number, (cell, sample) in enumerate(zip(cells, samples, strict=True)):
            counts, at = outside[at : at + len(cell)], at + len(cell)
            whole, later = len(sample) == len(cell), len(cell)
            mine: list[tuple[Integers, bool]] = []
            for count in np.unique(counts)[::-1]:
                part = cell[counts == count]
                later -= len(part)
                if whole and count != later:
                    raise _tree_error(
                        f"{count} of {len(cell)} units survive beside leaves {pivot} and "
                        f"{part[0]}, where {later} should"
                    )
                if not whole and len(part) > 1:
                    # A sampled leaf meets the pivot no later than the others of its cell.
                    sampled = np.intersect1d(part, sample)
                    if len(sampled):
                        unsure.append((part, int(sampled[0]), number, len(mine)))
                mine.append((part, whole or len(part) == 1))
            parts.append(mine)
        if unsure:
            alike = self._alike(pivot, [(part, first) for part, first, _, _ in unsure])
            for (part, _, number, position), same in zip(unsure, alike, strict=True):
                parts[number][position] = part, same
        return parts

    def _alike(self, pivot: int, cells: list[tuple[Integers, int]]) -> list[bool]:
        """Whether all of each cell is below the operation in which its `first` meets the pivot."""
        masks, first, owner = [], [], []
        for number, (cell, one) in enumerate(cells):
            for at in range(0, len(cell), self.capacity):
                masks.append(self._mask(cell[at : at + self.capacity]))
                first.append(one)
                owner.append(number)
        j = np.array(first)
        outside = self._outside(np.full_like(j, pivot), j, np.stack(masks), np.arange(len(j)))
        apart = set(np.array(owner)[outside > 0].tolist())
        return [number not in apart for number in range(len(cells))]

    def contradicted(self, tree: RevealedTree, i: Integers, j: Integers) -> Bools:
        """See `Oracle`. One probe a pair: units inside must all be lost, those outside counted."""
        meeting = tree.meeting(i, j)
        if self.leaves <= self.capacity:
            units = np.ones((1, self.leaves), bool)
            outside = self._outside(i, j, units, np.zeros_like(i))
            wrong: Bools = outside != self.leaves - tree.sizes[meeting]
            return wrong
        units = np.zeros((len(i), self.leaves), bool)
        expected = np.zeros(len(i), np.int64)
        half = self.capacity // 2
        for row, node in enumerate(meeting.tolist()):
            inside = tree.below(node)
            around = tree.below(tree.above(node, 2 * len(inside)))
            units[row, self._some(inside, half)] = True
            chosen = self._some(np.setdiff1d(around, inside, assume_unique=True), half)
            units[row, chosen] = True
            expected[row] = len(chosen)
        found: Bools = self._outside(i, j, units, np.arange(len(i))) != expected
        return found

    def misplaced(self, tree: RevealedTree, nodes: Integers) -> Bools:
        """See `Oracle`. One probe an operation: units on its siblings; fused ones one more.

        That one has units on its other operands; so all pairs of three are seen, of more only some.
        """
        i, j, units, expected, owner = [], [], [], [], []
        for row, (mine, around) in enumerate(_relations(tree, nodes)):
            other = int(self._rng.integers(1, len(mine)))
            asked = [(0, other, around, True), (0, other, np.delete(mine, [0, other]), False)]
            if len(mine) == 3:
                asked += [(0, 3 - other, mine[other, None], False), (1, 2, mine[:1], False)]
            for a, b, leaves, kept in asked:
                if len(leaves):
                    chosen = self._some(leaves, self.capacity)
                    i.append(mine[a])
                    j.append(mine[b])
                    units.append(chosen)
                    expected.append(len(chosen) if kept else 0)
                    owner.append(row)
        wrong = np.zeros(len(nodes), bool)
        outside = self._each(np.array(i, int), np.array(j, int), units)
        wrong[np.array(owner, int)[outside != np.array(expected, int)]] = True
        return wrong

    def _some(self, of: Integers, most: int) -> Integers:
        return of if len(of) <= most else self._rng.choice(of, most, replace=False)


class PositiveOracle(Triples):
    """Answers from triples alone.

    Args:
        leaves: number of addends.
        together: the black box.
    """

    thorough = True

    def __init__(self, leaves: int, together: Together, seed: int = 0) -> None:
        self.leaves = leaves
        self.probes = 0
        self._box = together
        self._answers: dict[tuple[int, int, int], bool] = {}
        self._rng = np.random.default_rng(seed)

    def _together(self, i: Integers, j: Integers, k: Integers) -> Bools:
        asked = list(
            zip(*(x.tolist() for x in (i, np.minimum(j, k), np.maximum(j, k))), strict=True)
        )
        new = [q for q in dict.fromkeys(asked) if q not in self._answers]
        if new:
            self.probes += len(new)
            answers = self._box(*np.array(new).T)
            self._answers |= dict(zip(new, answers.tolist(), strict=True))
        return np.array([self._answers[q] for q in asked], bool)

    def order(self, pivot: int, others: Integers) -> list[Integers]:
        """See `Oracle`. |others| probes where the order is regular; else see `_sorted`."""
        regular = self._regular(pivot, others)
        return self._sorted(pivot, others) if regular is None else regular

    def contradicted(self, tree: RevealedTree, i: Integers, j: Integers) -> Bools:
        """See `Oracle`. Two probes a pair, with a third leaf outside and one inside."""
        meeting = tree.meeting(i, j)
        wrong = np.zeros(len(i), bool)
        for inside in (True, False):
            rows, third = [], []
            for row, node in enumerate(meeting.tolist()):
                below = tree.below(node)
                around = tree.below(int(tree.parents[node]))
                pool = (
                    below[(below != i[row]) & (below != j[row])]
                    if inside
                    else np.setdiff1d(around, below, assume_unique=True)
                )
                if len(pool):
                    rows.append(row)
                    third.append(int(self._rng.choice(pool)))
            if rows:
                wrong[rows] |= self._ask(third, i[rows], j[rows]) == inside
        return wrong

    def misplaced(self, tree: RevealedTree, nodes: Integers) -> Bools:
        """See `Oracle`. One probe an operation; fused ones one for each pair of their leaves."""
        asked: list[tuple[int, int, int]] = []
        meet, owner = [], []
        for row, (mine, around) in enumerate(_relations(tree, nodes)):
            before = [(s, mine[0], m) for s in around for m in mine[1:]]
            pairs = np.stack(np.triu_indices(len(mine), 1), 1) if len(mine) > 2 else mine[:0]
            if len(pairs) > _INSIDE:
                pairs = pairs[self._rng.choice(len(pairs), _INSIDE, replace=False)]
            apart = [
                (self._rng.choice(np.delete(mine, [a, b])), mine[a], mine[b]) for a, b in pairs
            ]
            asked += [*before, *apart]
            meet += [True] * len(before) + [False] * len(apart)
            owner += [row] * (len(before) + len(apart))
        wrong = np.zeros(len(nodes), bool)
        if asked:
            answers = self._ask(*np.array(asked).T)
            wrong[np.array(owner)[answers != np.array(meet)]] = True
        return wrong
