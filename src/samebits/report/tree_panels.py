"""What is drawn of a tree: who adds which element, and one panel a level. No coordinates here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from samebits.reveal.naming import words
from samebits.reveal.structure import Binary, Chain, Group, Leaf, Run, Series, Structure, shifted
from samebits.reveal.tree import Integers, RevealedTree

#: Boxes that are drawn in a row; of more, some are drawn as one.
MOST_BOXES = 8
#: Lanes that are drawn one by one.
MOST_LANES = 16
#: Panels of one picture; only irregular trees have more levels.
_MOST_PANELS = 6


def hue(rank: int, count: int) -> str:
    """The colour of accumulator `rank` of `count`, from blue over green and yellow to red."""
    turn = (212 - 236 * rank / max(count - 1, 1)) % 360 if count > 1 else 212
    return f"hsl({turn:.0f},62%,{70 if count < 9 or rank % 2 == 0 else 62}%)"


def elements(part: Structure) -> Integers:
    """All elements of a structure, in the order in which it takes them."""
    if isinstance(part, Leaf):
        return np.array([part.index])
    if isinstance(part, Binary):
        found = elements(part.part)
        for offset in part.offsets:
            found = np.concatenate([found, found + offset])
        return found
    if isinstance(part, Group | Series):
        return np.concatenate([elements(p) for p in part.parts])
    return np.concatenate([_of_run(run) for run in part.runs])


def _of_run(run: Run) -> Integers:
    shifts = np.arange(run.count)[:, None] * run.step
    return (shifts + elements(run.part)[None]).reshape(-1)


def accumulators(tree: RevealedTree) -> tuple[Integers, Integers]:
    """Which accumulator takes each element, and in which operation of it: [leaves] each.

    Accumulators are numbered by their first elements. A pair of elements that meet without one
    belongs to none: it is its own.
    """
    owner = np.full(tree.leaves, -1)
    step = np.zeros(tree.leaves, np.int64)
    count = 0

    def walk(part: Structure) -> None:
        nonlocal count
        if isinstance(part, Leaf):
            owner[part.index] = count
            count += 1
        elif isinstance(part, Binary):
            for copy in _copies(part.offsets):
                walk(shifted(part.part, copy))
        elif isinstance(part, Group | Series):
            for member in part.parts:
                walk(member)
        else:
            mine, at = -1, 0
            for run in part.runs:
                for j, member in _members(run.part):
                    if not isinstance(member, Leaf):
                        for t in range(run.count):
                            walk(shifted(member, t * run.step))
                        continue
                    if mine < 0:
                        mine, count = count, count + 1
                    copies = np.arange(run.count)
                    taken = member.index + copies * run.step
                    owner[taken] = mine
                    step[taken] = at + copies // run.width * _each(run) + j
                at += operations(run)

    walk(tree.structure)
    first = np.full(count, tree.leaves)
    np.minimum.at(first, owner, np.arange(tree.leaves))
    return np.argsort(np.argsort(first))[owner], step


def _members(part: Structure) -> list[tuple[int, Structure]]:
    """What of a run enters its accumulator: in which operation of each copy, and the part."""
    if isinstance(part, Series):
        return [(j, member) for j, each in enumerate(part.parts) for _, member in _members(each)]
    return [(0, p) for p in part.parts] if isinstance(part, Group) else [(0, part)]


def _each(run: Run) -> int:
    """Operations that one copy of a run takes."""
    return len(run.part.parts) if isinstance(run.part, Series) else 1


def operations(run: Run) -> int:
    """How many operations of its accumulator a run takes."""
    return -(-run.count // run.width) * _each(run)


def operand(run: Run, at: int) -> tuple[Structure, ...]:
    """What operation `at` of a run adds to its accumulator."""
    if isinstance(run.part, Series):
        t, j = divmod(at, len(run.part.parts))
        return (shifted(run.part.parts[j], t * run.step),)
    copies = range(at * run.width, min((at + 1) * run.width, run.count))
    return tuple(shifted(run.part, t * run.step) for t in copies)


def _copies(offsets: Sequence[int]) -> list[int]:
    """Where the copies of a binary fold lie, so ordered that those which meet are neighbours."""
    places = [0]
    for offset in offsets:
        places += [place + offset for place in places]
    return places


@dataclass(frozen=True)
class Box:
    """A part in a panel: its label, and its colour, or None for what is left out."""

    label: str
    colour: str | None
    fused: bool = False


@dataclass(frozen=True)
class Panel:
    """One level: a title and boxes; `levels` pairs of a binary fold, or 0 for a chain."""

    title: str
    boxes: tuple[Box, ...]
    levels: int = 0


def label(found: Integers) -> str:
    """Which elements these are."""
    low, high, n = int(found.min()), int(found.max()), len(found)
    if n == 1:
        return str(low)
    if high - low == n - 1:
        return f"{low} … {high}"
    ordered = np.sort(found)
    gaps = np.unique(np.diff(ordered))
    if len(gaps) == 1:
        return f"{low}, {low + int(gaps[0])} …" if n > 2 else f"{low}, {high}"
    return f"{n} from {low}"


def panels(part: Structure, prefix: str = "") -> Iterator[Panel]:
    """The levels of a structure, outermost first."""
    for _ in range(_MOST_PANELS):
        if isinstance(part, Leaf):
            return
        if isinstance(part, Binary):
            outer = _contiguous(part)
            title = _title(part)
            if outer:  # leaves of neighbours around lanes: two levels for a reader
                part = Binary(part.part, part.offsets[: len(part.offsets) - outer])
                yield Panel(prefix + title, *_leaves_in_pairs(part, outer))
                prefix, title = "each: ", _title(part)
            boxes, levels, note = _lanes(part)
            yield Panel(prefix + title + note, boxes, levels)
            part = part.part
        elif isinstance(part, Group | Series):
            shown = [
                Box(label(elements(p)), hue(i, len(part.parts))) for i, p in enumerate(part.parts)
            ]
            yield Panel(prefix + _title(part), _few(shown))
            part = max(part.parts, key=lambda p: len(elements(p)))
        else:
            yield Panel(prefix + _title(part), tuple(_steps(part)))
            members = [member for run in part.runs for _, member in _members(run.part)]
            inner = [member for member in members if not isinstance(member, Leaf)]
            if not inner:
                return
            part = max(inner, key=lambda p: len(elements(p)))
            if any(other != shifted(part, _first(other) - _first(part)) for other in inner):
                prefix = "the largest: "
                continue
        prefix = "each: "


def _first(part: Structure) -> int:
    return int(elements(part).min())


def _contiguous(part: Binary) -> int:
    """How many outer levels add contiguous leaves, if inner ones do not."""
    size, levels = len(elements(part.part)), len(part.offsets)
    for inner in range(1, levels):
        whole = size << inner
        if all(part.offsets[t] == whole << t - inner for t in range(inner, levels)):
            found = elements(Binary(part.part, part.offsets[:inner]))
            if int(found.max() - found.min()) == whole - 1:
                return levels - inner
    return 0


def _leaves_in_pairs(leaf: Binary, levels: int) -> tuple[tuple[Box, ...], int]:
    """2^levels copies of a contiguous leaf, or of neighbours that have met already."""
    found = elements(leaf)
    size, low = len(found), int(found.min())
    inside = max(0, levels - 3)
    count, each = 1 << levels - inside, size << inside
    more = f"\n{1 << inside} leaves" if inside else ""
    boxes = tuple(
        Box(f"{low + i * each} … {low + (i + 1) * each - 1}{more}", hue(i, count))
        for i in range(count)
    )
    return boxes, levels - inside


def _title(part: Structure) -> str:
    """What this level does, without the levels inside."""
    if isinstance(part, Chain) and len(part.runs) > 1:
        total = sum(map(operations, part.runs))
        return f"one accumulator takes {total:,} parts in turn"
    return words(part).split("; each:")[0]


def _steps(part: Chain) -> Iterator[Box]:
    """The operands of a chain, one box an operation; only those that are drawn."""
    total = sum(map(operations, part.runs))
    single = len(part.runs) == 1 and isinstance(part.runs[0].part, Leaf)
    at = 0
    for run in part.runs:
        for i in range(operations(run)):
            if _drawn(at, total):
                taken = operand(run, i)
                alone = single or (len(taken) == 1 and isinstance(taken[0], Leaf))
                colour = hue(0, 1) if alone else hue(_place(at, total), min(total, MOST_BOXES))
                found = np.concatenate([elements(t) for t in taken])
                fused = len(taken) > 1 or isinstance(taken[0], Group)
                yield Box(label(found), colour, fused)
            elif at == MOST_BOXES - 2:
                yield Box(f"{total - MOST_BOXES + 1:,} more", None)
            at += 1


def _drawn(at: int, total: int) -> bool:
    return total <= MOST_BOXES or at < MOST_BOXES - 2 or at == total - 1


def _place(at: int, total: int) -> int:
    return min(at, MOST_BOXES - 1) if at < total - 1 else min(total, MOST_BOXES) - 1


def _few(boxes: list[Box]) -> tuple[Box, ...]:
    """At most MOST_BOXES: of more, the first ones, how many are left out, and the last."""
    if len(boxes) <= MOST_BOXES:
        return tuple(boxes)
    left = len(boxes) - MOST_BOXES + 1
    return (*boxes[: MOST_BOXES - 2], Box(f"{left} more", None), boxes[-1])


def _lanes(part: Binary) -> tuple[tuple[Box, ...], int, str]:
    """The copies of a binary fold, or groups of them that have met already; a note on those."""
    levels = len(part.offsets)
    inside = 0 if levels <= MOST_LANES.bit_length() - 1 else levels - 3
    first, inner = _first(part.part), len(elements(part.part))
    group = np.array(_copies(part.offsets[:inside])) + first
    places = _copies(part.offsets[inside:])
    boxes = []
    for rank, place in zip(np.argsort(np.argsort(places)).tolist(), places, strict=True):
        if inside:
            name = f"lanes\n{label(group + place)}"
        else:
            name = label(elements(part.part) + place)
            name = name.replace(" …", "\n…") if inner > 2 and levels > 3 else name
        boxes.append(Box(name, hue(rank, len(places))))
    note = f"; drawn: {len(boxes)} groups of {1 << inside} that have met" if inside else ""
    return tuple(boxes), levels - inside, note
