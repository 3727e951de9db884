"""Orders of leaves from triples: whether j and k meet before they meet i.

The order of a few leaves suggests that of all, where it is regular; one triple a leaf proves it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from samebits.reveal.tree import Integers

#: Leaves from which on an order is suggested; and how many times fewer may need sorting after all.
_REGULAR = 8
#: Contiguous groups that are looked for at the end, but for repeated ones; pairs that make a
#: suggestion plausible; and groups of a turn whose ends are looked at.
_MOST_OUTER, _PAIRS, _ENDS = 16, 16, 3

Bools = npt.NDArray[np.bool_]


class Triples(ABC):
    """What follows from triples alone."""

    leaves: int
    probes: int
    _rng: np.random.Generator

    @abstractmethod
    def _together(self, i: Integers, j: Integers, k: Integers) -> Bools:
        """Whether j and k meet before they meet i, [P]; one probe each."""

    def _ask(self, i: npt.ArrayLike, j: npt.ArrayLike, k: npt.ArrayLike) -> Bools:
        i, j, k = (np.array(x) for x in np.broadcast_arrays(*map(np.atleast_1d, (i, j, k))))
        return self._together(i, j, k)

    def excludes(self, i: Integers, j: Integers, outer: int) -> Bools:
        """See `Oracle`. One probe a pair."""
        return self._ask(outer, i, j)

    def _regular(self, pivot: int, others: Integers) -> list[Integers] | None:
        """`Oracle.order` where it is regular, with one probe a leaf; None where it is not.

        The order of a few leaves suggests that of all. One probe a leaf proves it: a leaf meets the
        first of its group before the pivot, and the pivot meets the first of a group before that of
        the next. Where few leaves are elsewhere, these are sorted.
        """
        groups = self._suggested(pivot, others) if len(others) >= _REGULAR else None
        if groups is None:
            return None
        first = np.array([group[0] for group in groups])
        rest = np.concatenate([group[1:] for group in groups])
        owner = np.repeat(np.arange(len(groups)), [len(group) - 1 for group in groups])
        within = self._ask(pivot, first[owner], rest)
        if within.all() and self._ask(first[1:], pivot, first[:-1]).all():
            return groups
        wrong = rest[~within]
        if len(first) + len(wrong) > len(others) // _REGULAR:
            return None
        found = self._sorted(pivot, np.sort(np.append(first, wrong)))
        held = {int(one): rest[(owner == at) & within] for at, one in enumerate(first)}
        none = first[:0]
        return [
            np.sort(np.concatenate([group, *(held.get(int(x), none) for x in group)]))
            for group in found
        ]

    def _suggested(self, pivot: int, others: Integers) -> list[Integers] | None:
        """An order that a few probes do not contradict: contiguous groups at the end, then digits.

        Sizes of groups that repeat, one by one or several in turn, are taken to do so further in.
        None: the leaves do not look regular from here.
        """
        outer: list[Integers] = []
        seen: list[tuple[int, ...]] = []  # sizes from the end inwards; what repeats is one entry
        for _ in range(_MOST_OUTER):
            if others[0] <= pivot:
                break
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
            seen.append((len(others) - low,))
            others = others[:low]
            if not self._plausible(pivot, outer[:2]):
                return None
            for turn in range(1, len(seen) // 2 + 1):
                sizes = tuple(size for entry in seen[-turn:] for size in entry)
                if seen[-turn:] != seen[-2 * turn : -turn]:
                    continue
                times = self._repeated(pivot, others, sizes)
                if times:
                    seen[-2 * turn :] = [sizes * (2 + times)]
                    cuts = len(others) - np.cumsum((0, *sizes * times))[::-1]
                    outer[:0] = np.split(others[cuts[0] :], cuts[1:-1] - cuts[0])
                    others = others[: cuts[0]]
            if len(others) < _REGULAR:
                return [*(self._sorted(pivot, others) if len(others) else []), *outer]
        return None

    def _repeated(self, pivot: int, others: Integers, sizes: tuple[int, ...]) -> int:
        """How often groups of these sizes, given from the end inwards, seem to follow in turn."""
        length = sum(sizes)
        ends = np.cumsum(sizes)

        def there(turn: int) -> bool:
            """Whether some groups of a turn, counted from 0, begin and end where they should."""
            some = np.unique(np.append(self._rng.integers(0, len(sizes), _ENDS), len(sizes) - 1))
            first = len(others) - turn * length - ends[some]
            last = first + np.array(sizes)[some] - 1
            inside, after = first < last, first > 0
            i = np.append(np.full(inside.sum(), pivot), others[first[after]])
            j = np.append(others[first[inside]], np.full(after.sum(), pivot))
            k = np.append(others[last[inside]], others[first[after] - 1])
            return bool(self._ask(i, j, k).all())

        good, bad = 0, len(others) // length + 1  # turns that are there, and are not
        step = 1
        while good + 1 < bad:
            turns = min(good + step, bad - 1) if step else (good + bad) // 2
            if there(turns - 1):
                good, step = turns, 2 * step
            else:
                bad, step = turns, 0
        return good

    def _plausible(self, pivot: int, groups: list[Integers]) -> bool:
        """Whether a few pairs of leaves are where they should be."""
        large = [group for group in groups if len(group) > 1]
        most = min(_PAIRS, max(1, sum(map(len, groups)) // _REGULAR))
        bounds = np.cumsum([len(group) for group in large])  # a large group is as likely as it is
        places = self._rng.integers(0, bounds[-1], most) if large else bounds
        some = np.searchsorted(bounds, places, "right")
        pairs = [self._rng.choice(large[at], 2, replace=False) for at in some]
        if pairs and not self._ask(pivot, *np.array(pairs).T).all():
            return False
        if len(groups) < 2:
            return True
        at = self._rng.integers(0, len(groups) - 1, most)
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
        sums, known = [], set(others.tolist())
        for at, high in enumerate(ranked[1:]):
            both = (low + high - pivot for low in ranked[at::-1])
            # Where no sum is a leaf, it makes no difference.
            sums.append(next((leaf for leaf in both if leaf in known), -1))
        has = np.array(sums, int) >= 0
        one_digit = ~has
        one_digit[has] = self._ask(np.array(sums, int)[has], pivot, np.array(ranked[1:], int)[has])
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
