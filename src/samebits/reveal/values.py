"""Whether the order of a sum depends on its values: what a tree from probes cannot show by itself.

Sorted by magnitude, masks come last and swallow all units: that looks like one fused operation. So
where a known arithmetic does not explain the bits of random data, a fused operation has to be one
alignment and one sum, the same in all places, and a tree of additions must not be one of IEEE
additions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch

from samebits.reveal.arithmetic import MOST_BITS, Finding, Laboratory
from samebits.reveal.operand import SIGNIFICANT, SignedBox
from samebits.reveal.replay import NAMES
from samebits.reveal.tree import Integers, RevealedTree

#: Operations that are looked at closely, and rows of data for each that is compared with another.
_CLOSELY, _ROWS = 8, 3
#: Repeats, with values in other places, of one that differs.
_AGAIN = 6
#: Additions that are looked at.
_ADDITIONS = 64
#: Exponents below that of the largest value in such a row; its values have 8 significant bits.
_SPREAD = 22


def ordered(
    tree: RevealedTree,
    box: SignedBox,
    explained: bool | None,
    measured: Sequence[Finding],
    seed: int,
) -> str | None:
    """What shows that a sum whose bits a tree does not explain has an order of values; or None.

    A fused operation is no sum of aligned addends; or all operations are IEEE additions of one
    width, along a tree that does not give the function's bits.
    """
    rng, lab = np.random.default_rng(seed), Laboratory(box)
    fused = _fused(tree)
    if not fused:
        found = {finding.name: finding.value for finding in measured}
        bits = int(found.get("significant bits", "24").split()[0])
        whole = not found.get("partial results", "").startswith("narrowed")
        if explained is False and whole and _ieee(tree, lab, bits, rng):
            return (
                f"{NAMES[bits]} additions along the tree of the probes do not give the bits of "
                "random data, though each operation is one: the order of additions depends on the "
                "values"
            )
        return None
    widest = max(fused, key=lambda t: len(tree.children[t - tree.leaves]))
    closely = {widest, *rng.permutation(fused)[: _CLOSELY - 1].tolist()}
    signs = (_sorted(lab, _operands(tree, t), rng) for t in closely)
    return next((why for why in signs if why), None)


def unlike(tree: RevealedTree, box: SignedBox, seed: int) -> str | None:
    """What shows that an operation that seems fused is several; or None.

    It gives other bits for the same values in other places. Operations of one width are compared
    with the first; where one differs, as one that rounds its result does, with itself.
    """
    rng, one = np.random.default_rng(seed), Laboratory(box).one

    def seen(operations: list[Integers], data: list[list[float]]) -> np.ndarray:
        rows = [
            dict(zip(rng.permutation(leaves).tolist(), row, strict=True))
            for leaves in operations
            for row in data
        ]
        return box.sums(rows).reshape(len(operations), -1)

    widths: dict[int, list[Integers]] = {}
    for t in _fused(tree):
        leaves = _operands(tree, t)
        widths.setdefault(len(leaves), []).append(leaves)
    for width, operations in widths.items():
        data = [_row(width, one, rng) for _ in range(_ROWS)]
        bits = seen([operations[0], *operations], data)
        for at in np.flatnonzero((bits[1:] != bits[0]).any(1)):
            own = seen([operations[at]] * _AGAIN, data)
            if (own != own[0]).any():
                return _said(operations[at], "it matters which of them has which value")
    return None


def _fused(tree: RevealedTree) -> list[int]:
    return [t for t, operands in enumerate(tree.children, tree.leaves) if len(operands) > 2]


def _said(leaves: Integers, why: str) -> str:
    shown = ", ".join(map(str, leaves[:3])) + (", ..." if len(leaves) > 3 else "")
    return (
        f"addends {shown} seem to enter one fused operation, but {why}: the order of additions "
        "depends on the values"
    )


def _ieee(tree: RevealedTree, lab: Laboratory, bits: int, rng: np.random.Generator) -> bool:
    """Whether additions round to the nearest: many of them, below the root, and the result.

    Nothing else may round: addends pass as they are (under autocast they do not). It is enough that
    all this holds for numbers as large as the masks of the probes.
    """
    last = tree.leaves + len(tree.children) - 1
    ulp, edge = 2.0 ** (1 - bits), 2.0 ** (1 - min(bits, SIGNIFICANT[lab.box.results_in]))
    operand = lab.box.operand
    least = 2.0 ** (1 - SIGNIFICANT[operand.values or operand.dtype])
    for one in (lab.one, lab.box.levels.mask):
        rows = [{0: one, 1: 0.75 * edge * one}, {0: one, 1: 0.25 * edge * one}]
        rows += [{0: (1 + least) * one, 1: -one}]
        expected = [1 + edge, 1.0, least]
        for t in rng.permutation(np.arange(tree.leaves, last))[:_ADDITIONS].tolist():
            p, q = _operands(tree, t).tolist()
            around = _operands(tree, int(tree.parents[t]))
            away = int(around[around != p][0])
            for part, left in ((1.0, 1.0), (0.75, 1.0), (0.25, 0.0)):
                rows.append({p: one, q: part * ulp * one, away: -one})
                expected.append(left * ulp)
        if (lab.box.sums(rows) / one == expected).all():
            return True
    return False


def _operands(tree: RevealedTree, node: int) -> Integers:
    """A leaf of every operand."""
    ordered, start = tree.spans
    return ordered[start[list(tree.children[node - tree.leaves])]]


def _sorted(lab: Laboratory, leaves: Integers, rng: np.random.Generator) -> str | None:
    """What shows that a fused operation adds its addends one by one, in an order of values.

    Addends of 0.375 of the last bit kept, beside a mask of either sign at the first and the last
    leaf, are lost one by one, and so together; in an order of values they would be added first for
    some of these. Narrow results may not show that, so random data has to fit there.
    """
    bits = lab.kept(*leaves[:3].tolist())
    if bits >= MOST_BITS or lab.blind:
        return None
    for mask, *others in (leaves.tolist(), leaves[::-1].tolist()):
        for sign in (lab.one, -lab.one):
            small = 0.375 * 2.0**-bits * sign
            against = {mask: lab.one, others[0]: -lab.one}
            rows = [
                {mask: sign, others[0]: small}, {mask: sign, **dict.fromkeys(others, small)},
                {**against, others[1]: small}, {**against, **dict.fromkeys(others[1:], small)},
            ]  # fmt: skip
            alone, together, left, all_left = lab.box.sums(rows)
            if alone == sign != together or not _near(all_left, left * (len(others) - 1), lab.box):
                return _said(leaves, "small ones are added up before they meet a large one")
    if SIGNIFICANT[lab.box.results_in] < 24 and lab.box.scale == 1:
        data = [_row(len(leaves), lab.one, rng) for _ in range(_ROWS)]
        data += [_balanced(len(leaves), lab.one, rng) for _ in range(_ROWS)]
        seen = lab.box.sums([dict(zip(leaves.tolist(), row, strict=True)) for row in data])
        models = ([_aligned(row, bits, nearest) for row in data] for nearest in (False, True))
        if not any(_near(seen, np.array(model), lab.box) for model in models):
            return _said(leaves, "random data does not give a sum of aligned addends")
    return None


def _near(seen: npt.ArrayLike, expected: npt.ArrayLike, box: SignedBox) -> bool:
    """Whether results are what is expected, rounded to their dtype in any direction."""
    ulp = 2.0 ** (1 - SIGNIFICANT[box.results_in])
    least = 2.0**-24 if box.results_in == torch.float16 else 0.0
    apart = np.abs(np.subtract(seen, expected)) * box.scale
    return bool((apart <= ulp * np.abs(expected) * box.scale + least).all())


def _aligned(row: list[float], bits: int, nearest: bool) -> float:
    """The sum of multiples of the last bit kept beside the largest addend."""
    step = Fraction(2) ** (int(np.frexp(np.abs(row).max())[1]) - 1 - bits)
    terms = (Fraction(value) / step for value in row)
    return float(sum(round(t) if nearest else int(t) for t in terms) * step)


def _balanced(width: int, one: float, rng: np.random.Generator) -> list[float]:
    """Values of 8 significant bits, three of which add up to 0: what is left is what is lost."""
    third = width // 3
    x, y = rng.integers(64, 128, (2, third)) / 128 * 2.0 ** -rng.integers(0, _SPREAD + 1, third)
    both = np.zeros(width)
    places = rng.permutation(width)[: 3 * third]
    both[places] = np.concatenate([x, y, -(x + y)])
    return list(both * one / 4)


def _row(width: int, one: float, rng: np.random.Generator) -> list[float]:
    """Values of 8 significant bits, the last of which nearly cancels the others."""
    exponents = -rng.integers(0, _SPREAD + 1, width - 1)
    exponents[0] = 0
    values = (1 + rng.integers(0, 128, width - 1) / 128) * 2.0**exponents
    values *= rng.choice([-0.25, 0.25], width - 1)
    total = torch.tensor(-values.sum(), dtype=torch.float64, device="cpu").to(torch.bfloat16).item()
    return [*(values * one).tolist(), total * one]
