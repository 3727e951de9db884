"""What a tree is called: in words, and as the text of the contract that has it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from samebits.contract import tree as contract_tree
from samebits.contract.tree import CHAIN, Balanced, LaneFold, Lanes, Segment, Split, Tree, cut
from samebits.reveal.structure import Binary, Chain, Group, Leaf, Run, Series, Structure, runs_of

#: Runs of an irregular chain that are put into words; of more, the number is said.
_SAID = 3
#: Leaves of what is called split or balanced; more are called segments by their length.
_MOST_PARTS = 16
#: Names that are looked for: a tree of few leaves has many.
_MOST_NAMES = 3


class Named(Protocol):
    """What is asked of a `RevealedTree`."""

    @property
    def leaves(self) -> int: ...
    @property
    def children(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def structure(self) -> Structure: ...
    @property
    def sizes(self) -> npt.NDArray[np.int64]: ...
    @property
    def block(self) -> int: ...

    def meeting_size(self, i: npt.ArrayLike, j: npt.ArrayLike) -> npt.NDArray[np.int64]: ...
    def expands(self, tree: Tree, arithmetic: int) -> bool: ...


def block_width(part: Structure) -> int:
    """Elements that enter one operation together: 1 for additions and fmas, 16 for a Hopper block.

    The widest fused step over single elements.
    """
    return max((run.width for run in runs_of(part) if isinstance(run.part, Leaf)), default=1)


def contracts_of(tree: Named) -> tuple[Tree, ...]:
    """The contracts' trees that expand to `tree` with its block width, the plainest first."""
    width = block_width(tree.structure)
    root = sorted(int(tree.sizes[c]) for c in tree.children[-1]) if tree.children else []
    found = (
        candidate
        for candidate in dict.fromkeys(_candidates(tree))
        if _may_be(candidate, tree.leaves, root) and tree.expands(candidate, width)
    )
    return tuple(islice(found, _MOST_NAMES))


def _may_be(candidate: Tree, leaves: int, root: list[int]) -> bool:
    """Whether the last addition of a candidate has operands of these sizes: a cheap first test."""
    if isinstance(candidate, contract_tree.Chain | Lanes):
        return True
    parts = cut(candidate, 0, leaves)
    if len(parts) < 2:
        return False
    ascending = candidate.fold == "ascending"
    last = len(parts) - 1 if ascending else 1 << (len(parts) - 1).bit_length() - 1
    edge = parts[last][0]
    return sorted((edge, leaves - edge)) == root


def _candidates(tree: Named) -> Iterator[Tree]:
    """Trees that the outermost levels of the structure suggest."""
    yield CHAIN
    lengths: list[int] = []
    inner = tree.structure
    while isinstance(inner, Chain) and not isinstance(inner.runs[0].part, Leaf):
        lengths += [run.step for run in inner.runs if run.count > 1 and run.step > 0]
        if len(inner.runs) > 1:
            lengths.append(_size(inner.runs[0].part))
        inner = inner.runs[0].part
    if isinstance(inner, Binary):
        lengths += inner.offsets
    folds: tuple[LaneFold, ...] = ("halves", "neighbours")
    kinds: list[contract_tree.Leaf] = [CHAIN]
    for stride in sorted(_strides(inner)):
        if stride > 1 and not stride & (stride - 1):
            kinds += [Lanes(stride, fold) for fold in folds]
    yield from (kind for kind in kinds if _starts_with(tree, kind, tree.leaves))
    for kind in kinds:
        shortest = kind.width + 1 if isinstance(kind, Lanes) else 1
        for length in sorted({n for n in lengths if shortest <= n < tree.leaves}):
            if not _starts_with(tree, kind, length):
                continue
            parts = -(-tree.leaves // length)
            if parts <= _MOST_PARTS and parts & (parts - 1) == 0:
                yield Split(parts, kind)
                yield Balanced(parts, kind)
            yield Segment(length, kind)
            yield Segment(length, kind, "pairwise")


def _starts_with(tree: Named, kind: contract_tree.Leaf, length: int) -> bool:
    """Whether a few of the first `length` elements meet as in a leaf of this kind and length."""
    if length > 1 and tree.meeting_size(0, length - 1) > length:
        return False
    if isinstance(kind, Lanes):
        if length % kind.width:
            return True
        at, size = 1 if kind.fold == "neighbours" else kind.width // 2, 2 * length // kind.width
    else:
        at, block = length // 2, tree.block
        size = min((at // block + 1) * block, length) if block > 1 else at + 1
    return at == 0 or int(tree.meeting_size(0, at)) == size


def _strides(part: Structure) -> set[int]:
    """What may be the number of lanes: the distance of the first chain's consecutive elements.

    In lanes of one or two elements it is among the distances of a binary fold.
    """
    if isinstance(part, Binary) and isinstance(part.part, Leaf):
        return {1 << len(part.offsets), *part.offsets, *(2 * d for d in part.offsets[:1])}
    if isinstance(part, Binary):
        return _strides(part.part)
    if isinstance(part, Group | Series):
        return _strides(part.parts[0])
    if isinstance(part, Chain):
        run = part.runs[0]
        return {abs(run.step)} if isinstance(run.part, Leaf) else _strides(run.part)
    return set()


def _size(part: Structure) -> int:
    """Leaves of a structure."""
    if isinstance(part, Leaf):
        return 1
    if isinstance(part, Binary):
        return _size(part.part) << len(part.offsets)
    if isinstance(part, Group | Series):
        return sum(map(_size, part.parts))
    return sum(_size(run.part) * run.count for run in part.runs)


def describe(tree: Named) -> str:
    """The tree in words, with the contract's tree that it equals, if there is one.

    Example:
        >>> describe(RevealedTree.from_contract(Split(4), 4096, 16))
        '4 contiguous leaves of 1024, ascending fold; each: a chain in 16-wide fused blocks
        (contract split(4))'
    """
    named = contracts_of(tree)
    contract = f" (contract {named[0]})" if named else ""
    return words(tree.structure) + contract


def words(part: Structure) -> str:
    """A structure in words, outer levels first."""
    if isinstance(part, Leaf):
        return f"element {part.index}"
    if isinstance(part, Group):
        return "one fused operation of " + " and ".join(map(words, part.parts))
    if isinstance(part, Binary):
        return _binary(part)
    if isinstance(part, Series):
        return "in turn " + ", ".join(map(words, part.parts))
    if len(part.runs) == 1:
        return _run(part.runs[0])
    said = [_entering(run) for run in part.runs[:_SAID]]
    more = len(part.runs) - _SAID
    if more > 0:
        said.append(f"{more} more")
    return "an accumulator that takes " + ", then ".join(said)


def _entering(run: Run) -> str:
    """What a run adds to an accumulator that other runs add to as well."""
    if isinstance(run.part, Leaf):
        first, last = run.part.index, run.part.index + (run.count - 1) * run.step
        if run.count == 1:
            return f"element {first}"
        by = "" if abs(run.step) == 1 else f" by {abs(run.step)}"
        blocks = f" in {run.width}-wide fused blocks" if run.width > 1 else ""
        return f"elements {first} ... {last}{by}{blocks}"
    if isinstance(run.part, Series):
        return _run(run)
    times = f"{run.count} sums of" if run.count > 1 else "the sum of"
    return f"{times} ({words(run.part)})"


def _run(run: Run) -> str:
    if isinstance(run.part, Leaf):
        if 1 < run.count <= run.width:
            return f"one fused block of {run.count}{_spaced(run.step)}"
        chain = f"a chain of {run.count}{_spaced(run.step)}"
        return chain if run.width == 1 else f"{chain} in {run.width}-wide fused blocks"
    if isinstance(run.part, Series):
        return _series(run.part, run)
    size = _size(run.part)
    order = "descending" if run.step < 0 else "ascending"
    contiguous = "contiguous " if abs(run.step) == size else ""
    how = f"{order} fold" if run.width == 1 else f"{run.width} fused at a time"
    return f"{run.count} {contiguous}leaves of {size}, {how}; each: {words(run.part)}"


def _series(part: Series, run: Run) -> str:
    if all(isinstance(p, Leaf) for p in part.parts):
        taken = ", ".join(str(p.index) for p in part.parts if isinstance(p, Leaf))
        return f"a chain of {run.count} times elements {taken}, each time {run.step} further"
    return f"a chain of {run.count} times: {words(part)}"


def _spaced(step: int) -> str:
    if abs(step) == 1:
        return "" if step == 1 else ", descending"
    return f" with stride {step}"


def _binary(part: Binary) -> str:
    """Lanes and contiguous leaves by name, other levels by their distances."""
    offsets, inner = part.offsets, part.part
    lanes = 0
    while lanes < len(offsets) and offsets[lanes] * 2 ** (lanes + 1) == 2 * offsets[0]:
        lanes += 1
    first = inner.runs[0] if isinstance(inner, Chain) else Run(inner)
    width, rest = 1 << lanes, offsets[lanes:]
    if lanes > 1 and offsets[lanes - 1] == 1:
        fold = "-".join(map(str, offsets[:lanes]))
    elif offsets[0] == 1:
        lanes = 0
        while lanes < len(offsets) and offsets[lanes] == 1 << lanes:
            lanes += 1
            if abs(first.step) == 1 << lanes:
                break
        width, rest, fold = 1 << lanes, offsets[lanes:], "neighbours first"
    else:
        lanes, rest = 0, offsets
    if not lanes:
        return _pairs(rest, _size(inner), words(inner))
    said = f"{width} lanes, folded {fold}; each: {words(inner)}"
    return _pairs(rest, _size(inner) << lanes, said) if rest else said


def _pairs(offsets: tuple[int, ...], size: int, each: str) -> str:
    count = 1 << len(offsets)
    if offsets == tuple(size << t for t in range(len(offsets))):
        return f"{count} contiguous leaves of {size}, pairwise fold; each: {each}"
    return (
        f"{count} leaves of {size}, pairs at distances {', '.join(map(str, offsets))}; each: {each}"
    )
