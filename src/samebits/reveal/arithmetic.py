"""What one operation of a revealed tree does: each property by a probe of its own.

The tree says which leaves meet first. So two leaves p, q that do, and a leaf r that comes later,
are a laboratory: p = 1 and q = 2^-t are added, r = -1 takes the 1 away again, and what is left of
2^-t, which any output type can hold, tells what the first addition and all that lies between have
kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from samebits.reveal.operand import SignedBox
from samebits.reveal.tree import RevealedTree

#: Repeats by which a rounding that varies is recognised.
_REPEATS = 2
#: Bits below the leading one that are tried: more than binary64 has.
MOST_BITS = 60
#: What is left of 0.75, 0.25 and 0.5 ulp after an addition to 1, of -0.75 and -0.25 to -1.
_ROUNDINGS: dict[tuple[int, ...], str] = {
    (1, 0, 0, -1, 0): "to nearest even",
    (1, 0, 1, -1, 0): "to nearest, ties away from zero",
    (0, 0, 0, 0, 0): "toward zero",
    (1, 1, 1, 0, 0): "up",
    (0, 0, 0, -1, -1): "down",
}


@dataclass(frozen=True)
class Finding:
    """A property and what was measured for it."""

    name: str
    value: str
    measured: str

    def __str__(self) -> str:
        return f"{self.name}: {self.value} ({self.measured})"

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"name": self.name, "value": self.value, "measured": self.measured}


def findings(tree: RevealedTree, box: SignedBox) -> tuple[Finding, ...]:
    """All properties that the tree, and the operation's dtype, allow to be measured."""
    found = _structure(tree)
    lab = Laboratory(box)
    if not box.operand.sums or not tree.children or lab.blind:
        return tuple(found)
    first = tree.children[0]
    leaves = [c for c in first if c < tree.leaves]
    if len(leaves) > 2:
        found.append(_fraction(lab, leaves[0], leaves[1], leaves[2]))
    later = _outside(tree, tree.leaves)
    if len(leaves) > 1 and later is not None:
        p, q = leaves[:2]
        bits = lab.kept(p, q, later)
        found.append(_significand(bits))
        if bits < MOST_BITS:
            found.append(_rounding(lab, p, q, later, bits))
        found += _partials(tree, lab, bits)
    found += _products(tree, box) + _subnormals(lab, leaves)
    return tuple(found)


class Laboratory:
    """Sums of three addends, all others 0."""

    def __init__(self, box: SignedBox) -> None:
        self.box = box
        #: fp16 has no room below 1 for what is looked for.
        self.one = 256.0 if box.operand.dtype == torch.float16 else 1.0
        #: Averages in fp16 have no room for what is small.
        self.blind = box.results_in == torch.float16 and box.scale != 1

    def left(self, p: int, q: int, r: int, small: Sequence[float]) -> list[float]:
        """What is left of each `small` at q, beside `one` at p, after r has taken the one away."""
        one, rows = self.one, []
        for part in small:
            sign = one if part >= 0 else -one
            rows.append({p: sign, q: part * one, r: -sign})
        return [float(x) / one for x in self.box.sums(rows)]

    def kept(self, p: int, q: int, r: int) -> int:
        """The largest t for which 2^-t survives beside 1."""
        narrow = self.box.operand.dtype == torch.float16
        powers = [2.0**-t for t in range(1, 33 if narrow else MOST_BITS + 1)]
        left = self.left(p, q, r, powers)
        lost = (t for t, (a, b) in enumerate(zip(left, powers, strict=True)) if a != b)
        return next(lost, len(powers))


def _structure(tree: RevealedTree) -> list[Finding]:
    width, n = tree.block, tree.leaves
    if width == 1:
        return [Finding("block", "1", "every operation has two operands")]
    fused = [o for o in tree.children if len(o) > 2]
    found = [Finding("block", f"{width} addends", f"up to {width} leaves enter one operation")]
    if len(fused) < 2:
        return found
    chained = sum(any(c >= n for c in o) and any(c < n for c in o) for o in fused)
    said = "chained" if chained >= len(fused) // 2 else "restarted"
    return [
        *found,
        Finding(
            "accumulator", said, f"in {chained} of {len(fused)} fused operations it is an operand"
        ),
    ]  # fmt: skip


def _outside(tree: RevealedTree, node: int) -> int | None:
    """A leaf that is not below a node: the first one of what the node meets next."""
    if node == tree.parents[node]:
        return None
    siblings = [c for c in tree.children[int(tree.parents[node]) - tree.leaves] if c != node]
    return int(tree.below(siblings[0])[0])


def _fraction(lab: Laboratory, p: int, q: int, r: int) -> Finding:
    bits = lab.kept(p, q, r)
    name = "fraction bits of a block"
    if bits >= MOST_BITS:
        return Finding(name, f"{bits} or more", "2^-60 survives beside 1 and -1 in one block")
    return Finding(
        name, str(bits), f"2^-{bits} survives beside 1 and -1 in one block, 2^-{bits + 1} does not"
    )


def _significand(bits: int) -> Finding:
    name, said = "significant bits", {23: " (fp32)", 52: " (fp64)", 10: " (fp16)", 7: " (bf16)"}
    if bits >= MOST_BITS:
        return Finding(name, f"{bits + 1} or more", "2^-60 survives beside 1")
    return Finding(
        name,
        f"{bits + 1}{said.get(bits, '')}",
        f"1 + 2^-{bits} - 1 leaves 2^-{bits}, 1 + 2^-{bits + 1} - 1 does not",
    )


def _rounding(lab: Laboratory, p: int, q: int, r: int, bits: int) -> Finding:
    ulp = 2.0**-bits
    probes = (0.75, 0.25, 0.5, -0.75, -0.25)
    added = [part * ulp for part in probes]
    runs = [tuple(x / ulp for x in lab.left(p, q, r, added)) for _ in range(_REPEATS)]
    shown = ", ".join(f"{part:g} -> {left:g}" for part, left in zip(probes, runs[0], strict=True))
    if len(set(runs)) > 1:
        return Finding("rounding", "varies between runs", f"ulps left of what was added: {shown}")
    value = _ROUNDINGS.get(tuple(int(x) if x == int(x) else 9 for x in runs[0]), "unknown")
    return Finding("rounding", value, f"ulps left of what was added to 1 or -1: {shown}")


def _partials(tree: RevealedTree, lab: Laboratory, bits: int) -> list[Finding]:
    """Whether partial results are rounded to a narrower type before the last operation."""
    operands = tree.children[-1]
    inner = [c for c in operands if c >= tree.leaves and tree.sizes[c] > 2]
    if len(tree.children) < 3 or not inner:
        return []
    part = inner[0]
    lowest = part
    while True:  # the first operation of this part
        below = [c for c in tree.children[lowest - tree.leaves] if c >= tree.leaves]
        if not below:
            break
        lowest = below[0]
    p, q = tree.children[lowest - tree.leaves][:2]
    others = [c for c in operands if c != part]
    r = int(tree.below(others[0])[0])
    kept = lab.kept(p, q, r)
    if kept == bits:
        return [Finding("partial results", "not narrowed", f"2^-{kept} beside 1 reaches the root")]
    said = {7: "bf16", 10: "fp16 or tf32", 23: "fp32"}.get(kept, f"{kept + 1} bits")
    return [
        Finding(
            "partial results", f"{'narrowed to' if kept < bits else 'wider:'} {said}",
            f"beside 1, 2^-{kept} reaches the root and 2^-{kept + 1} does not",
        )
    ]  # fmt: skip


def _products(tree: RevealedTree, box: SignedBox) -> list[Finding]:
    """fma or a multiplication with its own rounding; fp32 alone has products that fp32 rounds."""
    multiply, n = box.operand.multiply, tree.leaves
    steps = (o for o in tree.children if len(o) == 2 and o[0] >= n > o[1])
    step = next(steps, None)
    if multiply is None or box.operand.dtype != torch.float32 or step is None:
        return []
    p, q = int(tree.below(step[0])[0]), step[1]
    x = torch.ones(n, device=box.operand.device)
    w = torch.zeros((box.operand.slots, n), device=box.operand.device)
    x[q] = 1 + 2.0**-12
    w[:, p], w[:, q] = -(1 + 2.0**-11), 1 + 2.0**-12
    column = 0 if box.use is None else int(box.use[0])
    left = float(multiply(x, w)[box.row, column])
    values = {2.0**-24: "fused multiply-add", 0.0: "multiplied and rounded, then added"}
    return [
        Finding(
            "products", values.get(left, "unknown"),
            f"(1 + 2^-12)^2 - (1 + 2^-11) leaves {left:g}; exactly it is 2^-24",
        )
    ]  # fmt: skip


def _subnormals(lab: Laboratory, leaves: list[int]) -> list[Finding]:
    if lab.box.operand.dtype not in (torch.float32, torch.bfloat16) or lab.box.scale != 1:
        return []
    if len(leaves) < 2:
        return []
    p, q = leaves[:2]
    alone, made = lab.box.sums([{p: 2.0**-130}, {p: 1.5 * 2.0**-126, q: -(2.0**-126)}])
    kept = (alone == 2.0**-130, made == 2.0**-127)
    value = {
        (True, True): "kept",
        (False, True): "flushed to zero on input",
        (True, False): "flushed to zero in sums",
        (False, False): "flushed to zero",
    }[kept]
    return [
        Finding(
            "subnormals", value,
            f"2^-130 gives {alone:g}, 1.5 * 2^-126 - 2^-126 gives {made:g}",
        )
    ]  # fmt: skip
