"""A revealed tree as one self-contained SVG: an axis that shows who adds what, then level by level.

At the top, the reduced axis from left to right: one colour, one accumulator that adds them.
Below, one panel a level of the tree's regular form (`samebits.reveal.structure`), from the last
addition down to single elements; what repeats is drawn once and counted. So the picture of 16,384
elements has the size of that of 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from samebits.report.tree_panels import MOST_BOXES, Box, Panel, accumulators, hue, panels
from samebits.reveal.tree import Integers, RevealedTree

WIDTH, MARGIN = 860, 30
INNER = WIDTH - 2 * MARGIN
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


# ---- the axis ----------------------------------------------------------------------------------


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


def compare(rows: Sequence[tuple[str, RevealedTree]], *, title: str, note: str = "") -> str:
    """Several trees under each other, each as its axis and a line of words.

    Args:
        rows: what each is, and its tree.
        title, note: as in `draw`.
    """
    body: list[str] = []
    y = MARGIN + 8.0
    for kind, line in [("h", title), *([("s", note)] if note else [])]:
        for piece in wrapped(line, kind, INNER):
            body.append(text(MARGIN, y, piece, kind))
            y += 20
    left, width = MARGIN + 150.0, INNER - 150.0
    for name, tree in rows:
        y += 12
        body.append(f'<path class="rule" d="M{MARGIN} {y - 10:g}H{WIDTH - MARGIN}"/>')
        owner, step = accumulators(tree)
        top = y
        for i, piece in enumerate(wrapped(name, "t", left - MARGIN - 12)):
            body.append(text(MARGIN, top + 12 + 17 * i, piece, "t"))
            y = top + 17 * (i + 1)
        body += ribbon(owner, top, 14, left, width)
        body += near(owner, step, top + 20, left, width)
        below = top + 50
        for piece in wrapped(f"{tree.describe()} · tree {tree.id}", "m", width):
            body.append(text(left, below, piece, "m"))
            below += 15
        y = max(y, below)
    y += 12
    last = (
        f"Upper line: all elements; lower line: the first {NEAR}. One colour, one accumulator; "
        "cells without a gap enter one fused operation."
    )
    for piece in wrapped(last, "m", INNER):
        body.append(text(MARGIN, y, piece, "m"))
        y += 15
    return page(WIDTH, y + 6, title, body)


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
