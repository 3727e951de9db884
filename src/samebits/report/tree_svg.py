"""A revealed tree as one self-contained SVG: an axis that shows who adds what, then level by level.

At the top, the reduced axis from left to right: one colour, one accumulator that adds them.
Below, one panel a level of the tree's regular form (`samebits.reveal.structure`), from the last
addition down to single elements; what repeats is drawn once and counted. So the picture of 16,384
elements has the size of that of 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from samebits.reveal.naming import words
from samebits.reveal.structure import Binary, Chain, Group, Leaf, Run, Structure, shifted
from samebits.reveal.tree import Integers, RevealedTree

WIDTH, MARGIN = 860, 30
INNER = WIDTH - 2 * MARGIN
#: Boxes that are drawn in a row; of more, some are drawn as one.
MOST_BOXES = 8
#: Lanes that are drawn one by one.
MOST_LANES = 16
#: Panels of one picture; only irregular trees have more levels.
_MOST_PANELS = 6
#: Elements of the magnified axis.
NEAR = 64

STYLE = """
svg{--card:#fff;--ink:#18212c;--soft:#5d6a79;--rule:#dbe1e8;--wire:#51606f;--zoom:#eef2f6;--dot:#fff}
@media (prefers-color-scheme:dark){svg{--card:#161d27;--ink:#e8edf3;--soft:#98a5b5;--rule:#2c3744;
--wire:#93a2b3;--zoom:#202a36;--dot:#232d3a}}
.card{fill:var(--card)}.zoom{fill:var(--zoom)}.rule{stroke:var(--rule)}
.wire{stroke:var(--wire);stroke-width:1.5;fill:none;stroke-linejoin:round}
.dot{fill:var(--dot);stroke:var(--wire);stroke-width:1.5}
.more{fill:none;stroke:var(--soft);stroke-dasharray:3 3}
text{fill:var(--ink);font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
.h{font-size:17px;font-weight:600}.t{font-size:13.5px;font-weight:600}.s{fill:var(--soft)}
.b{font-size:11px;fill:#10161d}.m{font-size:11px;fill:var(--soft)}
""".replace("\n", "")

_SIZES = {"h": 17.0, "t": 13.5, "b": 11.0, "m": 11.0, "s": 12.0, "": 12.0}


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(content)}'
        "</text>"
    )


def length(content: str, kind: str = "") -> float:
    """An estimate of a text's width, for the widest of the usual sans-serif faces."""
    size = _SIZES[kind.split(" ")[0]]
    wide = 0.64 if kind.startswith(("h", "t", "b")) else 0.57
    return wide * size * len(content)


def wrapped(content: str, kind: str, room: float) -> list[str]:
    """`content` in lines that fit into `room`; it may have line ends of its own."""
    if "\n" in content:
        return [line for part in content.split("\n") for line in wrapped(part, kind, room)]
    lines = [""]
    for word in content.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if length(longer, kind) > room and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def hue(rank: int, count: int) -> str:
    """The colour of accumulator `rank` of `count`, from blue over green and yellow to red."""
    turn = (212 - 236 * rank / max(count - 1, 1)) % 360 if count > 1 else 212
    return f"hsl({turn:.0f},62%,{70 if count < 9 or rank % 2 == 0 else 62}%)"


# ---- who adds what -----------------------------------------------------------------------------


def elements(part: Structure) -> Integers:
    """All elements of a structure, in the order in which it takes them."""
    if isinstance(part, Leaf):
        return np.array([part.index])
    if isinstance(part, Binary):
        found = elements(part.part)
        for offset in part.offsets:
            found = np.concatenate([found, found + offset])
        return found
    if isinstance(part, Group):
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
        elif isinstance(part, Group):
            for member in part.parts:
                walk(member)
        else:
            mine, at = -1, 0
            for run in part.runs:
                if isinstance(run.part, Leaf):
                    if mine < 0:
                        mine, count = count, count + 1
                    taken = _of_run(run)
                    owner[taken] = mine
                    step[taken] = at + np.arange(run.count) // run.width
                else:
                    for t in range(run.count):
                        walk(shifted(run.part, t * run.step))
                at += -(-run.count // run.width)

    walk(tree.structure)
    first = np.full(count, tree.leaves)
    np.minimum.at(first, owner, np.arange(tree.leaves))
    return np.argsort(np.argsort(first))[owner], step


def _copies(offsets: Sequence[int]) -> list[int]:
    """Where the copies of a binary fold lie, so ordered that those which meet are neighbours."""
    places = [0]
    for offset in offsets:
        places += [place + offset for place in places]
    return places


def ribbon(owner: Integers, y: float, height: float, left: float, width: float) -> list[str]:
    """The axis as a coloured ribbon: one rectangle for each stretch of one accumulator."""
    count = int(owner.max()) + 1
    edges = np.flatnonzero(np.diff(owner)) + 1
    if len(edges) > 400:  # interleaved, finer than a screen shows: one element of each column
        columns = np.arange(200)
        each = len(owner) / len(columns)
        owner = owner[(columns * each + columns * 7919 % each).astype(int)]
        edges = np.flatnonzero(np.diff(owner)) + 1
    starts, stops = [0, *edges.tolist()], [*edges.tolist(), len(owner)]
    scale = width / len(owner)
    return [
        f'<rect x="{left + a * scale:.2f}" y="{y:g}" width="{(b - a) * scale:.2f}" '
        f'height="{height:g}" fill="{hue(int(owner[a]), count)}"/>'
        for a, b in zip(starts, stops, strict=True)
    ]


def near(owner: Integers, step: Integers, y: float, left: float, width: float) -> list[str]:
    """The first elements, one cell each: those that enter one operation touch each other."""
    count = int(owner.max()) + 1
    shown = min(len(owner), NEAR)
    cell = width / NEAR
    parts = []
    for i in range(shown):
        together = i + 1 < shown and owner[i] == owner[i + 1] and step[i] == step[i + 1]
        gap = 0.0 if together else 2.0
        parts.append(
            f'<rect x="{left + i * cell:.2f}" y="{y:g}" width="{cell - gap:.2f}" height="14" '
            f'fill="{hue(int(owner[i]), count)}"/>'
        )
    return parts


# ---- panels ------------------------------------------------------------------------------------


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
        elif isinstance(part, Group):
            shown = [
                Box(label(elements(p)), hue(i, len(part.parts))) for i, p in enumerate(part.parts)
            ]
            yield Panel(prefix + _title(part), _few(shown))
            part = max(part.parts, key=lambda p: len(elements(p)))
        else:
            yield Panel(prefix + _title(part), _few(list(_steps(part))))
            inner = [run.part for run in part.runs if not isinstance(run.part, Leaf)]
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
        total = sum(-(-run.count // run.width) for run in part.runs)
        return f"one accumulator takes {total:,} parts in turn"
    return words(part).split("; each:")[0]


def _steps(part: Chain) -> Iterator[Box]:
    """The operands of a chain, one box an operation."""
    total = sum(-(-run.count // run.width) for run in part.runs)
    at = 0
    single = all(isinstance(run.part, Leaf) for run in part.runs)
    for run in part.runs:
        steps = -(-run.count // run.width)
        # Boxes that will not be drawn need no label.
        for s in range(steps):
            if _drawn(at, total):
                first, last = s * run.width, min((s + 1) * run.width, run.count)
                taken = _of_run(Run(shifted(run.part, first * run.step), last - first, run.step))
                colour = hue(0, 1) if single else hue(_place(at, total), min(total, MOST_BOXES))
                yield Box(label(taken), colour, last - first > 1)
            elif at == MOST_BOXES - 2:
                yield Box(f"{total - MOST_BOXES + 1} more", None)
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


def _box(x: float, y: float, width: float, box: Box) -> list[str]:
    """A box with its label in up to three lines."""
    room = width - 6
    kind = "b" if box.colour else "m"
    lines = wrapped(box.label, kind, room)
    parts = [
        f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="44" rx="5" '
        + (f'fill="{box.colour}"/>' if box.colour else 'class="more"/>')
    ]
    top = y + 26 - 6.5 * (len(lines) - 1)
    parts += [text(x + width / 2, top + 13 * i, line, kind, "middle") for i, line in
              enumerate(lines)]  # fmt: skip
    return parts


def _plus(x: float, y: float, fused: bool) -> list[str]:
    sign = (
        f'<path class="wire" d="M{x - 4:.1f} {y:g}h8m-4 -4v8"/>'
        if not fused
        else f'<path class="wire" d="M{x + 3.5:.1f} {y - 4.5:g}h-7l4 4.5l-4 4.5h7"/>'
    )
    return [f'<circle class="dot" cx="{x:.1f}" cy="{y:g}" r="8.5"/>', sign]


def _chain(panel: Panel, y: float) -> tuple[list[str], float]:
    """Operands in a row, an accumulator that passes over them from left to right."""
    n, gap = len(panel.boxes), 10.0
    width = (INNER - 60 - gap * (n - 1)) / n
    width = min(width, 150.0)
    rail, base = y + 24, y + 52
    wires: list[str] = []
    marks: list[str] = []
    end = MARGIN + n * (width + gap) - gap
    middles = [MARGIN + i * (width + gap) + width / 2 for i in range(n)]
    wires.append(
        f'<path class="wire" d="M{middles[0]:.1f} {base:g}V{rail:g}H{end + 12:.1f}'
        'm-6 -4l6 4l-6 4"/>'
    )
    for i, (x, box) in enumerate(zip(middles, panel.boxes, strict=True)):
        marks += _box(x - width / 2, base, width, box)
        if box.colour and (i or box.fused):
            wires.append(f'<path class="wire" d="M{x:.1f} {base:g}V{rail:g}"/>')
            marks += _plus(x, rail, box.fused)
    marks.append(text(end + 17, rail + 4, "sum", "s"))
    return wires + marks, base + 44 - y


def _tournament(panel: Panel, y: float) -> tuple[list[str], float]:
    """Operands in a row, pairs meeting above them, level by level."""
    n, gap = len(panel.boxes), 4.0 if len(panel.boxes) > MOST_BOXES else 10.0
    width = (INNER - gap * (n - 1)) / n
    rise = 26.0
    base = y + 30 + rise * panel.levels
    wires: list[str] = []
    marks: list[str] = []
    points = [MARGIN + i * (width + gap) + width / 2 for i in range(n)]
    for x, box in zip(points, panel.boxes, strict=True):
        marks += _box(x - width / 2, base, width, box)
    height = base
    for _ in range(panel.levels):
        above = height - rise
        pairs = list(zip(points[::2], points[1::2], strict=True))
        for a, b in pairs:
            wires.append(
                f'<path class="wire" d="M{a:.1f} {height:g}V{above:g}H{b:.1f}V{height:g}"/>'
            )
            marks += _plus((a + b) / 2, above, False)
        points, height = [(a + b) / 2 for a, b in pairs], above
    wires.append(f'<path class="wire" d="M{points[0]:.1f} {height:g}v-22m-4 6l4 -6l4 6"/>')
    marks.append(text(points[0] + 10, height - 13, "sum", "s"))
    return wires + marks, base + 44 - y


# ---- the picture -------------------------------------------------------------------------------


def draw(tree: RevealedTree, *, title: str = "", note: str = "") -> str:
    """The tree as a self-contained SVG that follows the reader's light or dark theme.

    Args:
        tree: the tree.
        title: first line; the number of elements if empty.
        note: second line, e.g. where it was measured.
    """
    body: list[str] = []
    y = MARGIN + 8.0
    for line in wrapped(title or f"a sum of {tree.leaves:,}", "h", INNER):
        body.append(text(MARGIN, y, line, "h"))
        y += 22
    operations = len(tree.children)
    facts = (
        f"{tree.leaves:,} elements, {operations:,} operations, "
        f"{int(tree.depths.max()):,} in a row · tree {tree.id}"
    )
    said = [*([note] if note else []), tree.describe(), facts]
    for line in (piece for part in said for piece in wrapped(part, "s", INNER)):
        body.append(text(MARGIN, y, line, "s"))
        y += 17
    y += 8
    owner, step = accumulators(tree)
    drawn, height = _axis(tree.leaves, owner, step, y)
    body += drawn
    y += height
    for panel in panels(tree.structure):
        y += 20
        body.append(f'<path class="rule" d="M{MARGIN} {y - 8:g}H{WIDTH - MARGIN}"/>')
        for line in wrapped(panel.title, "t", INNER):
            y += 17
            body.append(text(MARGIN, y, line, "t"))
        drawn, height = (_tournament if panel.levels else _chain)(panel, y)
        body += drawn
        y += height
    y += 34
    body += _key(y - 10, tree.block)
    return page(WIDTH, y + 8, title or f"reduction tree {tree.id}", body)


def _axis(leaves: int, owner: Integers, step: Integers, y: float) -> tuple[list[str], float]:
    """The axis as a whole and, if it is long, its beginning magnified."""
    count = int(owner.max()) + 1
    who = "one accumulator" if count == 1 else f"{count:,} accumulators"
    parts = [text(MARGIN, y + 11, f"who adds which element: {who}, one colour each", "m")]
    y0 = y + 18
    if leaves <= NEAR:
        parts += near(owner, step, y0, MARGIN, INNER)
        parts.append(text(MARGIN, y0 + 28, "0", "m"))
        if leaves > 4:
            end = MARGIN + INNER * leaves / NEAR
            parts.append(text(end, y0 + 28, f"{leaves - 1}", "m", "end"))
        return parts, 56
    parts += ribbon(owner, y0, 18, MARGIN, INNER)
    parts.append(text(WIDTH - MARGIN, y + 11, f"0 … {leaves - 1}", "m", "end"))
    edge = MARGIN + INNER * NEAR / leaves
    parts.append(
        f'<path class="zoom" d="M{MARGIN} {y0 + 18:g}H{edge:.1f}L{WIDTH - MARGIN} {y0 + 40:g}'
        f'H{MARGIN}z"/>'
    )
    parts += near(owner, step, y0 + 40, MARGIN, INNER)
    parts.append(text(MARGIN, y0 + 68, "0", "m"))
    parts.append(text(WIDTH - MARGIN, y0 + 68, f"{NEAR - 1}", "m", "end"))
    return parts, 96


def _key(y: float, block: int) -> list[str]:
    parts = _plus(MARGIN + 9, y - 4, False)
    parts.append(text(MARGIN + 26, y, "an addition, or a fused multiply-add", "m"))
    if block > 1:
        parts += _plus(MARGIN + 309, y - 4, True)
        parts.append(text(MARGIN + 326, y, f"{block} elements and the accumulator at once", "m"))
    return parts


def page(width: float, height: float, name: str, body: Sequence[str]) -> str:
    """A self-contained SVG document."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{escape(name)}">'
        f"<title>{escape(name)}</title><style>{STYLE}</style>"
        f'<rect class="card" width="{width:g}" height="{height:g}" rx="12"/>{"".join(body)}</svg>\n'
    )
