"""The regular form of a tree: repetition written once.

A tree over 16,384 leaves has as many operations; what a reader wants to see is "4 chains of 256
blocks of 16". Five kinds of parts say everything, losslessly::

    Leaf(i)                     element i
    Chain(runs)                 one accumulator that takes part after part
    Binary(part, offsets)       2^k copies of a part, added in pairs, level by level
    Group(parts)                different parts that enter one operation side by side
    Series(parts)               different parts that enter an accumulator one after another

A `Run` repeats a part: copy t is the part with every index raised by t * step. `width` copies enter
the accumulator in one operation (1: plain additions or fmas; 16: a Hopper tensor core). The first
step of a chain has no accumulator yet: `Chain((Run(Leaf(0), 32, 1, 16),))` is one operation over
0 ... 15, then one over its result and 16 ... 31. A last step may be shorter.

`Binary(part, (8, 4, 2, 1))` is the fold 8-4-2-1 of 16 lanes: first copies at distance 8 meet, then
what is left at distance 4, ...; `Binary(part, (1, 2, 4))` adds neighbours first, then neighbours of
the results.

Addition commutes, so a tree cannot tell left from right: operands are ordered by smallest element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from samebits.errors import RevealError


@dataclass(frozen=True)
class Leaf:
    """One element of the reduced axis."""

    index: int


@dataclass(frozen=True)
class Run:
    """`count` copies of `part`, copy t raised by t * step; `width` of them enter one operation."""

    part: Structure
    count: int = 1
    step: int = 0
    width: int = 1


@dataclass(frozen=True)
class Chain:
    """One accumulator that takes the runs' parts in order, the first step without accumulator."""

    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Binary:
    """2^len(offsets) copies of `part`; at level t those at distance offsets[t] meet."""

    part: Structure
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Different parts that enter one operation of a chain together; only inside a `Run`."""

    parts: tuple[Structure, ...]


@dataclass(frozen=True)
class Series:
    """Parts that enter an accumulator one after another, again and again; only inside a `Run`."""

    parts: tuple[Structure, ...]


#: Runs of a chain that are left as they are; in a longer one a period is looked for, up to this.
_FEW_RUNS, _LONGEST_PERIOD = 4, 32

Structure = Leaf | Chain | Binary | Group | Series


def shifted(part: Structure, by: int) -> Structure:
    """`part` with every index raised by `by`."""
    if not by:
        return part
    if isinstance(part, Leaf):
        return Leaf(part.index + by)
    if isinstance(part, Binary):
        return Binary(shifted(part.part, by), part.offsets)
    if isinstance(part, Group | Series):
        return type(part)(tuple(shifted(p, by) for p in part.parts))
    return Chain(tuple(Run(shifted(r.part, by), r.count, r.step, r.width) for r in part.runs))


# ---- written down ------------------------------------------------------------------------------


def text(part: Structure) -> str:
    """The canonical text: `(0*1024+1/16)` is a chain over 0 ... 1023, 16 in one operation.

    `part*count+step/width` is a run, `(run run ...)` a chain, `[part offset offset ...]` a binary
    fold, `{part part}` a group, `<part part>` a series.
    """
    if isinstance(part, Leaf):
        return str(part.index)
    if isinstance(part, Binary):
        return f"[{text(part.part)} {' '.join(map(str, part.offsets))}]"
    if isinstance(part, Group):
        return "{" + " ".join(map(text, part.parts)) + "}"
    if isinstance(part, Series):
        return "<" + " ".join(map(text, part.parts)) + ">"
    return "(" + " ".join(map(_run_text, part.runs)) + ")"


def _run_text(run: Run) -> str:
    times = f"*{run.count}{run.step:+d}" if run.count > 1 else ""
    return text(run.part) + times + (f"/{run.width}" if run.width > 1 else "")


def to_data(part: Structure) -> Any:
    """Plain lists, dicts and integers, for JSON."""
    if isinstance(part, Leaf):
        return part.index
    if isinstance(part, Binary):
        return {"binary": to_data(part.part), "offsets": list(part.offsets)}
    if isinstance(part, Group):
        return {"group": [to_data(p) for p in part.parts]}
    if isinstance(part, Series):
        return {"series": [to_data(p) for p in part.parts]}
    return {
        "chain": [
            {"part": to_data(r.part), "count": r.count, "step": r.step, "width": r.width}
            for r in part.runs
        ]
    }


def from_data(data: Any) -> Structure:
    """The inverse of `to_data`.

    Raises:
        RevealError: the data describes no structure.
    """
    try:
        if isinstance(data, int):
            return Leaf(data)
        if "binary" in data:
            return Binary(from_data(data["binary"]), tuple(map(int, data["offsets"])))
        if "group" in data:
            return Group(tuple(map(from_data, data["group"])))
        if "series" in data:
            return Series(tuple(map(from_data, data["series"])))
        return Chain(
            tuple(
                Run(from_data(r["part"]), int(r["count"]), int(r["step"]), int(r["width"]))
                for r in data["chain"]
            )
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RevealError(f"{data!r} describes no tree: {error}") from error


# ---- down to its operations, and back ----------------------------------------------------------


def expand(part: Structure, leaves: int) -> list[tuple[int, ...]]:
    """The operations of a structure: element t is the operands of node `leaves + t`.

    Operands are leaves (below `leaves`) or earlier nodes; the last node is the root.
    """
    nodes: list[tuple[int, ...]] = []

    def join(parts: Sequence[int]) -> int:
        if len(parts) == 1:
            return parts[0]
        nodes.append(tuple(parts))
        return leaves + len(nodes) - 1

    def operands(part: Structure, shift: int) -> list[int]:
        if isinstance(part, Group | Series):
            return [emit(p, shift) for p in part.parts]
        return [emit(part, shift)]

    def emit(part: Structure, shift: int) -> int:
        if isinstance(part, Leaf):
            return part.index + shift
        if isinstance(part, Binary):
            if not part.offsets:
                return emit(part.part, shift)
            half = Binary(part.part, part.offsets[:-1])
            return join([emit(half, shift), emit(half, shift + part.offsets[-1])])
        if isinstance(part, Group | Series):
            return join(operands(part, shift))
        acc: list[int] = []
        for run in part.runs:
            if isinstance(run.part, Series):
                for t in range(run.count):
                    for p in run.part.parts:
                        acc = [join([*acc, emit(p, shift + t * run.step)])]
                continue
            for start in range(0, run.count, run.width):
                copies = range(start, min(start + run.width, run.count))
                taken = [x for t in copies for x in operands(run.part, shift + t * run.step)]
                acc = [join([*acc, *taken])]
        return acc[0]

    emit(part, 0)
    return nodes


@dataclass
class _Run:
    """A run while it grows: its part's shape, and the smallest element of its first copy."""

    shape: int
    base: int
    count: int = 1
    step: int = 0
    width: int = 1
    operations: int = 1

    def takes(self, other: _Run) -> bool:
        """Whether `other`, the next operation's operands, continues this run; takes it if so."""
        full = self.count == self.operations * self.width
        step = self.step if self.count > 1 else other.base - self.base
        if (
            not full
            or other.shape != self.shape
            or other.count > self.width
            or other.base != self.base + self.count * step
            or (other.count > 1 and other.step != step)
        ):
            return False
        self.step = step
        self.count += other.count
        self.operations += 1
        return True


@dataclass
class _Binary:
    shape: int
    base: int
    offsets: list[int]


_Draft = int | list[_Run] | _Binary


class _Shapes:
    """Structures up to a shift: equal shapes have equal numbers. Shape 0 is a leaf."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.parts: list[Structure] = [Leaf(0)]

    def number(self, key: tuple[Any, ...], part: Structure) -> int:
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.parts)
            self.parts.append(part)
        return found

    def of(self, draft: _Draft, base: int) -> int:
        """The shape of a draft whose smallest element is `base`."""
        if isinstance(draft, int):
            return 0
        if isinstance(draft, _Binary):
            key: tuple[Any, ...] = (draft.shape, draft.base - base, *draft.offsets)
            part = shifted(self.parts[draft.shape], draft.base - base)
            return self.number(("binary", *key), Binary(part, tuple(draft.offsets)))
        draft = self.periodic(draft) if len(draft) > _FEW_RUNS else draft
        rows = [(r.shape, r.base - base, r.count, r.step, r.width) for r in draft]
        return self.number(("chain", *rows), Chain(tuple(self._run(*row) for row in rows)))

    def _run(self, shape: int, base: int, count: int, step: int, width: int) -> Run:
        return Run(shifted(self.parts[shape], base), count, step, width)

    def group(self, members: list[tuple[int, int]], kind: type[Group | Series] = Group) -> int:
        """The shape of different (shape, base) that enter one operation, or one after another."""
        first = members[0][1]
        key = tuple((shape, base - first) for shape, base in members)
        parts = tuple(shifted(self.parts[shape], base) for shape, base in key)
        return self.number((kind.__name__, *key), kind(parts))

    def periodic(self, runs: list[_Run]) -> list[_Run]:
        """A chain of many runs as a series that repeats, if most of it is one."""
        if any(run.width > 1 for run in runs):
            return runs
        order = [(r.shape, r.base + t * r.step) for r in runs for t in range(r.count)]
        for first in (order[:2], order[1::-1]):  # the first two commute
            parts = [*first, *order[2:]]
            for period in range(2, min(_LONGEST_PERIOD, len(parts) // 3) + 1):
                step = parts[period][1] - parts[0][1]
                same = 0
                for (shape, base), later in zip(parts, parts[period:], strict=False):
                    if later != (shape, base + step):
                        break
                    same += 1
                times = same // period + 1
                if 2 * times * period > len(parts):
                    series = self.group(parts[:period], Series)
                    rest = [_Run(shape, base) for shape, base in parts[times * period :]]
                    return [_Run(series, parts[0][1], times, step, 1, times), *rest]
        return runs


def compress(leaves: int, children: Sequence[tuple[int, ...]]) -> Structure:
    """The regular form of a tree.

    The accumulator of an operation is its operand with the most leaves, so that nesting is at most
    log2(leaves) deep, however long a chain is.

    Args:
        leaves: number of leaves.
        children: operands of node `leaves + t`, ordered by smallest element; see `expand`.
    """
    shapes = _Shapes()
    drafts: list[_Draft] = list(range(leaves))
    least, size = list(range(leaves)), [1] * leaves
    for operands in children:
        least.append(least[operands[0]])
        size.append(sum(size[c] for c in operands))
        drafts.append(_join(shapes, operands, drafts, least, size))
        for c in operands:
            if c >= leaves:
                drafts[c] = 0  # taken over, or sealed in a shape
    top = drafts[-1]
    if isinstance(top, int):
        return Leaf(top)
    return shifted(shapes.parts[shapes.of(top, least[-1])], least[-1])


def _join(
    shapes: _Shapes,
    operands: tuple[int, ...],
    drafts: list[_Draft],
    least: list[int],
    size: list[int],
) -> _Draft:
    def sealed(c: int) -> tuple[int, int]:
        return shapes.of(drafts[c], least[c]), least[c]

    if all(size[c] == size[operands[0]] for c in operands):
        members = [sealed(c) for c in operands]
        alike = _uniform(members)
        if alike is not None:
            if len(operands) > 2:
                return [alike]
            return _pair(alike, drafts[operands[0]])
    acc = max(operands, key=lambda c: size[c])
    members = [sealed(c) for c in operands if c != acc]
    new = _uniform(members)
    if new is None:
        new = _Run(shapes.group(members), members[0][1])
    draft = drafts[acc]
    if isinstance(draft, _Binary):
        draft = _halved(shapes, draft, new) or draft
    if not isinstance(draft, list):
        draft = [_Run(*sealed(acc))]
    first = draft[0]
    pair = len(draft) == 1 and (first.count, first.width) == (2, 1)
    if pair and new.base == first.base - first.step:  # the first two commute: a descending chain
        first.base, first.step = first.base + first.step, -first.step
    if not draft[-1].takes(new):
        draft.append(new)
    return draft


def _uniform(members: list[tuple[int, int]]) -> _Run | None:
    """One operation's operands as a run, if they are copies of one part at equal distances."""
    (shape, base), count = members[0], len(members)
    step = members[1][1] - base if count > 1 else 0
    if any(m != (shape, base + t * step) for t, m in enumerate(members)):
        return None
    return _Run(shape, base, count, step, count)


def _pair(two: _Run, draft: _Draft) -> _Draft:
    """Two equal parts: one more level of a binary fold, or what may become a chain of equals."""
    if isinstance(draft, _Binary):
        draft.offsets.append(two.step)
        return draft
    if isinstance(draft, list) and len(draft) == 1:
        (run,) = draft
        if (run.count, run.width, run.operations) == (2, 1, 2):
            return _Binary(run.shape, run.base, [run.step, two.step])
    return [_Run(two.shape, two.base, 2, two.step, 1, 2)]


def _halved(shapes: _Shapes, draft: _Binary, new: _Run) -> list[_Run] | None:
    """A binary fold as the first two of a chain's equal parts, if `new` is the third."""
    *inner, last = draft.offsets
    half: _Draft = (
        _Binary(draft.shape, draft.base, inner)
        if len(inner) > 1
        else [_Run(draft.shape, draft.base, 2, inner[0], 1, 2)]
    )
    shape = shapes.of(half, draft.base)
    if new.count > 1 or new.shape != shape or new.base != draft.base + 2 * last:
        return None
    return [_Run(shape, draft.base, 2, last, 1, 2)]


def runs_of(part: Structure) -> Iterator[Run]:
    """All runs of a structure, outer ones first."""
    if isinstance(part, Chain):
        for run in part.runs:
            yield run
            yield from runs_of(run.part)
    elif isinstance(part, Binary):
        yield from runs_of(part.part)
    elif isinstance(part, Group | Series):
        for member in part.parts:
            yield from runs_of(member)
