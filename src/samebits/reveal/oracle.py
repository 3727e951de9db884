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

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from samebits.errors import RevealError
from samebits.reveal.tree import Integers, RevealedTree

#: Leaves from which on an order is suggested; and how many times fewer may need sorting after all.
_REGULAR = 8
#: Contiguous groups that are looked for at the end, and pairs that make a suggestion plausible.
_MOST_OUTER, _PAIRS = 16, 16
#: Elements of a table of units.
_MOST_CELLS = 1 << 26

Bools = npt.NDArray[np.bool_]
#: i [P], j [P], sets of units [U, n], which of them [P] -> units outside of where i and j meet, [P]
Count = Callable[[Integers, Integers, Bools, Integers], Integers]
#: i [P], j [P], k [P] -> whether j and k meet before they meet i, [P]
Together = Callable[[Integers, Integers, Integers], Bools]


class Oracle(Protocol):
    """What reconstruction asks; `probes` counts the questions that reached the black box."""

    leaves: int

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
        """Which operations do not hold what `tree` says of the leaves next to them, [P]."""


def _ends(tree: RevealedTree, nodes: Integers) -> tuple[Integers, Integers]:
    """For each operation a leaf of its first and one of its last operand: they meet in it."""
    operands = [tree.children[node - tree.leaves] for node in nodes.tolist()]
    ordered, start = tree.spans
    return ordered[start[[o[0] for o in operands]]], ordered[start[[o[-1] for o in operands]]]


def _tree_error(detail: str) -> RevealError:
    return RevealError(
        f"the answers fit no tree: {detail}. Either the order of additions depends on the values "
        "or varies between runs, or the sum is wider than fp32 or compensated"
    )


class SignedOracle:
    """Answers from counts of units that escape a mask and its negative.

    Args:
        leaves: number of addends.
        count: the black box.
        capacity: units that one result can count.
    """

    def __init__(self, leaves: int, count: Count, capacity: int, seed: int = 0) -> None:
        self.leaves, self.capacity = leaves, capacity
        self.probes = 0
        self._count = count
        self._rng = np.random.default_rng(seed)

    def _outside(self, i: Integers, j: Integers, units: Bools, which: Integers) -> Integers:
        self.probes += len(i)
        return self._count(i, j, units, which)

    def _mask(self, chosen: npt.ArrayLike) -> Bools:
        mask = np.zeros(self.leaves, bool)
        mask[np.asarray(chosen)] = True
        return mask

    def order(self, pivot: int, others: Integers) -> list[Integers]:
        """See `Oracle`. About |others| probes; about twice that beyond the capacity.

        A cell is a stretch of the order that is not known further. A small one is asked about with
        units on all its leaves, a large one with units on a sample, which cuts it into cells.
        """
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

    def excludes(self, i: Integers, j: Integers, outer: int) -> Bools:
        """See `Oracle`. One probe a pair."""
        found: Bools = self._outside(i, j, self._mask([outer])[None], np.zeros_like(i)) == 1
        return found

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
        """See `Oracle`. One probe an operation.

        Beyond the capacity units are on stretches of the tree that overlap by half, each operation
        has that which its end is in the middle of.
        """
        ordered, start = tree.spans
        i, j = _ends(tree, nodes)
        first, end = start[nodes], start[nodes] + tree.sizes[nodes]
        width, begin = min(self.capacity, self.leaves), np.zeros_like(end)
        if width < self.leaves:
            begin = np.maximum(np.rint(2 * end / width).astype(np.int64) - 1, 0) * (width // 2)
        last = np.minimum(begin + width, self.leaves)
        inside = np.maximum(np.minimum(end, last) - np.maximum(first, begin), 0)
        expected = last - begin - inside
        used, which = np.unique(begin, return_inverse=True)
        wrong, together = np.zeros(len(nodes), bool), max(1, _MOST_CELLS // self.leaves)
        for at in range(0, len(used), together):
            units = np.stack([self._mask(ordered[b : b + width]) for b in used[at : at + together]])
            some = np.flatnonzero((which >= at) & (which < at + together))
            outside = self._outside(i[some], j[some], units, which[some] - at)
            wrong[some] = outside != expected[some]
        return wrong

    def _some(self, of: Integers, most: int) -> Integers:
        return of if len(of) <= most else self._rng.choice(of, most, replace=False)


class PositiveOracle:
    """Answers from triples: whether j and k meet before they meet i.

    Args:
        leaves: number of addends.
        together: the black box.
    """

    def __init__(self, leaves: int, together: Together, seed: int = 0) -> None:
        self.leaves = leaves
        self.probes = 0
        self._together = together
        self._rng = np.random.default_rng(seed)

    def _ask(self, i: npt.ArrayLike, j: npt.ArrayLike, k: npt.ArrayLike) -> Bools:
        i, j, k = (np.array(x) for x in np.broadcast_arrays(*map(np.atleast_1d, (i, j, k))))
        self.probes += i.size
        return self._together(i, j, k)

    def order(self, pivot: int, others: Integers) -> list[Integers]:
        """See `Oracle`. |others| probes where the order is regular; else see `_sorted`.

        The order of a few leaves suggests that of all. One probe a leaf proves it: a leaf meets the
        first of its group before the pivot, and the pivot meets the first of a group before that of
        the next.
        """
        groups = self._suggested(pivot, others) if len(others) >= _REGULAR else None
        if groups is None:
            return self._sorted(pivot, others)
        first = np.array([group[0] for group in groups])
        rest = np.concatenate([group[1:] for group in groups])
        owner = np.repeat(np.arange(len(groups)), [len(group) - 1 for group in groups])
        within = self._ask(pivot, first[owner], rest)
        if within.all() and self._ask(first[1:], pivot, first[:-1]).all():
            return groups
        wrong = rest[~within]
        if len(first) + len(wrong) > len(others) // _REGULAR:
            return self._sorted(pivot, others)
        found = self._sorted(pivot, np.sort(np.append(first, wrong)))
        held = {int(one): rest[(owner == at) & within] for at, one in enumerate(first)}
        none = first[:0]
        return [
            np.sort(np.concatenate([group, *(held.get(int(x), none) for x in group)]))
            for group in found
        ]

    def _suggested(self, pivot: int, others: Integers) -> list[Integers] | None:
        """An order that a few probes do not contradict: contiguous groups at the end, then digits.

        None: the leaves do not look regular from here.
        """
        outer: list[Integers] = []
        while len(outer) < _MOST_OUTER and others[0] > pivot:
            groups = self._digits(pivot, others)
            if groups is not None and self._plausible(pivot, groups):
                return [*groups, *outer]
            last, low, high = others[-1], 0, len(others) - 1
            while low < high:  # the first leaf from which on all are in the last one's group
                middle = (low + high) // 2
                if self._ask(pivot, others[middle], last)[0]:
                    high = middle
                else:
                    low = middle + 1
            outer.insert(0, others[low:])
            others = others[:low]
            if not self._plausible(pivot, outer[:1]):
                return None
            if len(others) < _REGULAR:
                return [*(self._sorted(pivot, others) if len(others) else []), *outer]
        return None

    def _plausible(self, pivot: int, groups: list[Integers]) -> bool:
        """Whether a few pairs of leaves are where they should be."""
        large = [group for group in groups if len(group) > 1]
        some = self._rng.integers(0, len(large), _PAIRS if large else 0)
        pairs = [self._rng.choice(large[at], 2, replace=False) for at in some]
        if pairs and not self._ask(pivot, *np.array(pairs).T).all():
            return False
        if len(groups) < 2:
            return True
        at = self._rng.integers(0, len(groups) - 1, _PAIRS)
        now, then = (np.array([groups[i][0] for i in places]) for places in (at, at + 1))
        return bool(self._ask(then, pivot, now).all())

    def _digits(self, pivot: int, others: Integers) -> list[Integers] | None:
        """The order that follows if the bits of an index are the digits of its place; or None.

        Leaves whose distance from the pivot has one bit are sorted, and sums of two that are next
        to each other. Where the sum comes later than both, the bits count through one chain: they
        are one digit. Where it comes together with the later one, that is a digit further out. A
        leaf's group is the outermost digit that is not 0.
        """
        places = others - pivot
        bits = [1 << b for b in range(int(places.max()).bit_length()) if (places == 1 << b).any()]
        ranked = [int(g[0]) for g in self._sorted(pivot, pivot + np.array(bits)) if len(g) == 1]
        if len(ranked) < len(bits):
            return None
        sums = []
        for at, high in enumerate(ranked[1:]):
            both = [low + high - pivot for low in ranked[at::-1] if low + high - pivot in others]
            if not both:
                return None
            sums.append(both[0])
        one_digit = self._ask(np.array(sums, int), pivot, np.array(ranked[1:], int))
        key, digit = np.zeros_like(places), np.zeros_like(places)
        level, value = 0, 1
        for at, bit in enumerate(ranked):
            if at and not one_digit[at - 1]:
                key, level = np.where(digit > 0, level + digit, key), level + int(digit.max())
                digit, value = np.zeros_like(places), 1
            digit = digit + value * ((places & (bit - pivot)) > 0)
            value *= 2
        key = np.where(digit > 0, level + digit, key)
        return [others[key == each] for each in np.unique(key)] if key.all() else None

    def _sorted(self, pivot: int, others: Integers) -> list[Integers]:
        """`order` by a quicksort: about 2.8 n log2 n probes for n groups."""
        groups: list[Integers] = []
        stack = [(others, False)]
        while stack:
            cell, done = stack.pop()
            if done or len(cell) < 2:
                groups += [cell] if len(cell) else []
                continue
            middle = int(self._rng.choice(cell))
            rest = cell[cell != middle]
            before = self._ask(middle, pivot, rest)  # meet the pivot without the middle one
            after = np.zeros_like(before)
            after[~before] = self._ask(rest[~before], pivot, middle)
            same = np.sort(np.append(rest[~before & ~after], middle))
            stack += [(rest[after], False), (same, True), (rest[before], False)]
        return groups

    def excludes(self, i: Integers, j: Integers, outer: int) -> Bools:
        """See `Oracle`. One probe a pair."""
        return self._ask(outer, i, j)

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
        """See `Oracle`. One probe an operation, with the leaf behind it (or before it)."""
        ordered, start = tree.spans
        i, j = _ends(tree, nodes)
        end = start[nodes] + tree.sizes[nodes]
        beside = np.where(end < self.leaves, end, start[nodes] - 1)
        return ~self._ask(ordered[beside], i, j)
