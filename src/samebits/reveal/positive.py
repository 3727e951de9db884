"""An operation as a sum of positive terms: which of them meet first, seen by changes of one ulp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from samebits.errors import RevealError
from samebits.reveal.operand import SIGNIFICANT, Operand, called, checksum, octets, same_bits
from samebits.reveal.tree import Integers, RevealedTree
from samebits.reveal.triples import Bools

#: Small terms in ulps of the mask: one alone is lost and two are not, where sums are rounded to the
#: nearest; where they are truncated.
_SMALL = 0.375, 0.625
#: Terms of 1 whose sums are compared, so that each counts once.
_TOGETHER = 64
#: Fused operations that are looked at closely, and pairs of operands of one.
_MOST_FUSED, _MOST_PAIRS = 16, 1 << 9

#: Leaves and terms: one of each for every sum.
Small = Sequence[tuple[Integers, float]]
#: Sums, leaves in them, and a term.
More = tuple[Integers, Integers, float] | None


@dataclass(frozen=True)
class Terms:
    """Elements whose terms are positive, such as squares or exponentials.

    Attributes:
        of: the element whose term has a given size.
        nothing: the element whose term is 0.
        masks: terms to try for the mask, until a change of one ulp is seen in the result.
    """

    of: Callable[[float], float]
    nothing: float
    masks: tuple[float, ...] = (1.0, 1.25, 1.5, 1.75, 1.3, 1.1, 1.9, 2.5, 3.0, 3.5)


@dataclass
class PositiveBox:
    """Asks which terms meet first, of an `Operand` whose `run` gives [1, slots, elements].

    The result at the mask's own element is looked at (at the only one if there is one), in those
    slots that give the bits of slot `row` for the same elements. Beside a mask it has one of two
    values: that of the mask alone, and that of a sum which is one ulp larger.

    `asked` counts these sums.

    Raises (at construction and on every call):
        RevealError: an assumption does not hold; the message says which.
    """

    operand: Operand
    terms: Terms
    row: int = 0
    calls: int = 0
    asked: int = 0
    mask: float = 1.0
    ulp: float = 2.0**-23
    small: float = _SMALL[0]
    use: Integers = field(init=False)
    _alone: float = 0.0
    _moved: float = 0.0
    _ulps: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, name = self.operand.leaves, self.operand.name
        self.use = np.arange(self.operand.slots)
        if self.row >= self.operand.slots:
            raise RevealError(f"{name} has {self.operand.slots} rows: there is no {self.row}")
        if n < 2:
            return
        elements = self._elements(np.zeros(1, int), (), None, None)
        before = checksum(elements)
        result = self._call(elements).clone()
        if checksum(elements) != before:
            raise RevealError(f"{name} mutates its input: give it a function that works on a copy")
        if not same_bits(result, self._call(elements)):
            raise RevealError(f"{name} varies between runs on the same input: it has no one tree")
        self.use = self._alike()
        self._once()
        self._calibrate([24, 53] if SIGNIFICANT[result.dtype] == 53 else [24])
        if n > 2:
            ends = np.array([0, n // 2, n - 1])
            if self.together(ends, np.roll(ends, 1), np.roll(ends, 2)).all():
                raise RevealError(
                    f"{name}: of three terms any two are added before the third. Small terms come "
                    "first, so the order depends on the values; or the sum is wider than its "
                    "result (fp64, or compensated), or rounds in different ways"
                )

    # ---- assumptions ---------------------------------------------------------------------------

    def _alike(self) -> Integers:
        """The slots with the bits of slot `row`, for the same terms of random sizes in all."""
        rng, n = np.random.default_rng(0), self.operand.leaves
        line = [self.terms.of(float(term)) for term in rng.uniform(0.5, 2.0, n)]
        shape = self.operand.slots, n
        one = torch.tensor(line, dtype=torch.float64, device="cpu").to(self.operand.dtype)
        result = self._call(one.to(self.operand.device).expand(shape).contiguous())[0]
        words = octets(result).reshape(shape[0], -1)
        return np.flatnonzero((words == words[self.row]).all(1).cpu().numpy())

    def _once(self) -> None:
        """Tests that every term counts once: sums of equally many terms of 1 are equal."""
        n = self.operand.leaves
        count = min(_TOGETHER, max(1, n // 2))
        order = np.random.default_rng(0).permutation(n)
        sets = np.resize(order, (-(-n // count), count)).T
        seen = self._seen(sets[0], [(leaves, 1.0) for leaves in sets[1:]], mask=1.0)
        if not np.isfinite(seen).all() or (seen != seen[0]).any():
            raise RevealError(
                f"{self.operand.name} gives {seen.min()} and {seen.max()} for {count} terms of 1 "
                "at different places: it is not a sum of all its terms, each once"
            )

    def _calibrate(self, significant: Sequence[int]) -> None:
        """Chooses a mask and small terms with which a change of one ulp in the sum is seen."""
        name, one, zero = self.operand.name, np.ones(1, int), np.zeros(1, int)
        wide = False
        for bits in significant:
            for mask in self.terms.masks:
                self.mask, self.ulp = mask, 2.0 ** (math.frexp(mask)[1] - bits)
                alone, moved = (float(self._seen(zero, s)[0]) for s in ((), [(one, self.ulp)]))
                if not math.isfinite(alone):
                    raise RevealError(f"{name} returned {alone} for finite input")
                for small in _SMALL:
                    some = [(one, small * self.ulp)]
                    lost, two = (
                        float(self._seen(zero, s)[0]) for s in (some, [(one, 2 * small * self.ulp)])
                    )
                    wide |= lost != alone
                    if lost == alone != moved == two:
                        self.small, self._alone, self._moved = small, alone, moved
                        return
        if wide:
            raise RevealError(
                f"{name}: less than half an ulp of the largest term is seen in the result, so its "
                "terms are summed in more than its precision (fp64, or compensated): their order "
                "cannot be seen"
            )
        raise RevealError(
            f"{name}: a change of one ulp in the sum is not seen in its result, so the order of "
            "its terms is not either: what follows the sum (a root, a rounding to 16 bits) hides "
            "it. Pass a function that returns the sum itself, in fp32"
        )

    # ---- probes --------------------------------------------------------------------------------

    def together(self, i: Integers, j: Integers, k: Integers) -> Bools:
        """See `oracle.Together`."""
        small = self.small * self.ulp
        return self._changed(self._seen(i, [(j, small), (k, small)]), self._moved)

    def doubt(self, tree: RevealedTree, rng: np.random.Generator) -> str | None:
        """What shows that operations of a tree that seem fused are none, or hide others; or None.

        Beside a mask, small terms of 0.625 ulp, each of which is rounded up alone, are one sum in a
        fused operation: fewer ulps than terms. As many ulps as terms come from a chain that the
        mask is the first of, whichever it is: an order from large to small.
        """
        ordered, start = tree.spans
        fused = [ordered[start[list(operands)]] for operands in tree.children if len(operands) > 2]
        pairs = [np.stack(np.triu_indices(len(leaves), 1)) for leaves in fused]
        ends = [leaves[pair[:, :_MOST_PAIRS]] for leaves, pair in zip(fused, pairs, strict=True)]
        i, j = np.concatenate([np.zeros((2, 0), int), *ends], 1)
        within = self._seen(i, [(j, 2 * self.small * self.ulp)])
        if (within != self._moved).any() or (tree.leaves > 2 and not self._alike_everywhere(tree)):
            return "not all of its operations round in the same way: an order is not seen then"
        if self.small != _SMALL[0]:
            return None
        for at in rng.permutation(len(fused))[:_MOST_FUSED]:
            mask, *others = fused[at][:, None]
            up = self._seen(mask, [(leaf, _SMALL[1] * self.ulp) for leaf in others])
            each = self._seen(mask, [(others[0], len(others) * self.ulp)])
            if up[0] == each[0] != self._alone:
                return (
                    f"terms {mask[0]}, {others[0][0]}, {others[1][0]}, ... seem to enter one fused "
                    "operation, but small ones are rounded one by one beside any that is large: "
                    "the order of additions depends on the values"
                )
        return None

    def _alike_everywhere(self, tree: RevealedTree) -> bool:
        """Whether what two small terms are together is one ulp in every operation.

        A mask at a leaf, and such a term at a sibling of each operation above it, are as many ulps
        as there are operations. Leaves are taken until every operation was above one.
        """
        ordered, start = tree.spans
        first, n = ordered[start], tree.leaves
        todo = np.ones(len(tree.children), bool)
        masks, paths = [], []
        for leaf in ordered.tolist():
            if not todo[tree.parents[leaf] - n]:
                continue
            node, beside = leaf, []
            while node != tree.parents[node]:
                below, node = node, int(tree.parents[node])
                todo[node - n] = False
                operands = tree.children[node - n]
                beside.append(first[operands[0] if operands[0] != below else operands[1]])
            masks.append(leaf)
            paths.append(np.array(beside))
        term, slots = 2 * self.small * self.ulp, len(self.use)
        for at in range(0, len(masks), slots):
            i, some = np.array(masks[at : at + slots]), paths[at : at + slots]
            rows = np.repeat(np.arange(len(i)), [len(path) for path in some])
            seen = self._seen(i, (), more=(rows, np.concatenate(some), term))
            for count in {len(path) for path in some} - self._ulps.keys():
                one = self._seen(i[:1], [(some[0][:1], count * self.ulp)])
                self._ulps[count] = float(one[0])
            if (seen != [self._ulps[len(path)] for path in some]).any():
                return False
        return True

    def _changed(self, seen: np.ndarray, expected: float) -> Bools:
        changed: Bools = seen != self._alone
        if (seen[changed] != expected).any():
            raise RevealError(
                f"{self.operand.name} gave {seen[changed][seen[changed] != expected][0]}, where "
                f"{self._alone} or {expected} should be: beside a mask a small term is neither "
                "lost nor kept, so it is not a plain sum of its terms, or rounds in different ways"
            )
        return changed

    def _elements(self, i: Integers, small: Small, mask: float | None, more: More) -> Tensor:
        operand = self.operand
        shape = operand.slots, operand.leaves
        x = torch.full(shape, self.terms.nothing, dtype=operand.dtype, device=operand.device)
        x[:, 0] = self.terms.of(self.mask)  # slots that are not used
        rows = torch.from_numpy(self.use[: len(i)])
        x[rows] = self.terms.nothing
        for at, term in ((i, self.mask if mask is None else mask), *small):
            x[rows, torch.from_numpy(at)] = self.terms.of(term)
        if more is not None:
            x[rows[torch.from_numpy(more[0])], torch.from_numpy(more[1])] = self.terms.of(more[2])
        return x

    def _seen(
        self, i: Integers, small: Small, mask: float | None = None, more: More = None
    ) -> np.ndarray:
        """The results at the masks' places i [P], for sums of a mask and small terms.

        `more` terms of one size are in sums that are given one by one, of a single call.
        """
        found = [np.zeros(0)]
        self.asked += len(i)
        for first in range(0, len(i), len(self.use)):
            part = slice(first, first + len(self.use))
            some = [(leaves[part], term) for leaves, term in small]
            result = self._call(self._elements(i[part], some, mask, more))[0]
            at = torch.from_numpy(i[part]).to(result.device) if result.shape[-1] > 1 else 0
            rows = torch.from_numpy(self.use[: len(i[part])]).to(result.device)
            found.append(result[rows, at].double().cpu().numpy())
        return np.concatenate(found)

    def _call(self, elements: Tensor) -> Tensor:
        self.calls += 1
        return called(self.operand, (elements,), axes=3)
