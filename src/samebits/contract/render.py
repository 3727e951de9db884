"""Draws reduction trees: as text for a terminal, as SVG for a page. Repetition is folded up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from samebits.contract.tree import Chain, Lanes, Node, Run, Tree, cut, expand, fold

#: Leaves that are drawn one by one; of more, some are drawn as one.
MAX_LEAVES = 8
_ENDS = 3


@dataclass(frozen=True)
class Drawn:
    """A node of a picture: a leaf, or the sum of two nodes."""

    label: str
    left: Drawn | None = None
    right: Drawn | None = None
    several: bool = False  # stands for more than one leaf

    def leaves(self) -> list[Drawn]:
        """The leaves from left to right."""
        if self.left is None or self.right is None:
            return [self]
        return self.left.leaves() + self.right.leaves()


@dataclass(frozen=True)
class Figure:
    """One level of a tree: a title, a sum of leaves, or (steps) what a chain does."""

    title: str
    root: Drawn | None
    steps: tuple[str, ...] = ()


def _add(left: Drawn, right: Drawn) -> Drawn:
    return Drawn("+", left, right)


def figures(tree: Tree, axis: str, length: int, block: int) -> Iterator[Figure]:
    """One figure a level, from the whole reduction down to a chain."""
    where = f"{axis} = 0 … {length - 1}" if length else f"no {axis}"
    while not isinstance(tree, Chain):
        if isinstance(tree, Lanes):
            steps = -(-length // tree.width)
            order = "by halves" if tree.fold == "halves" else "neighbours first"
            note = f"{tree.width} chains of {steps} steps, folded {order}"
            wide = tree.fold == "neighbours" and tree.width > MAX_LEAVES
            drawn = _drawn_groups(tree.width) if wide else _drawn_lanes(expand(tree, length), axis)
            yield Figure(f"{tree}, {where}: {note}", drawn)
            return
        parts = cut(tree, 0, length)
        name, leaf = str(tree).partition(" of ")[0], tree.leaf
        note = f"{len(parts)} leaves" if len(parts) > 1 else "1 leaf"
        note += f", each {leaf}, folded {tree.fold}" if leaf != Chain() else f", folded {tree.fold}"
        yield Figure(f"{name}, {where}: {note}", _drawn_parts(parts, tree.fold == "pairwise"))
        tree, length = leaf, parts[0][1]
        where = f"a leaf of {length}"
    yield Figure(f"chain, {where}: one accumulator from +0", None, _drawn_steps(length, block))


def _drawn_parts(parts: list[tuple[int, int]], pairwise: bool) -> Drawn:
    leaves = [Drawn(f"{start} … {stop - 1}") for start, stop in parts]
    many = len(parts) > MAX_LEAVES
    if pairwise and many:
        group = 1
        while -(-len(parts) // group) > MAX_LEAVES:
            group *= 2
        chunks = [parts[i : i + group] for i in range(0, len(parts), group)]
        leaves = [
            Drawn(f"{c[0][0]} … {c[-1][1] - 1}{_count(c)}", several=len(c) > 1) for c in chunks
        ]
    elif many:
        between = Drawn(f"… {len(parts) - 2 * _ENDS} more", several=True)
        leaves = [*leaves[:_ENDS], between, *leaves[-_ENDS:]]
    return fold(leaves, "pairwise" if pairwise else "ascending", _add)


def _count(parts: list[tuple[int, int]]) -> str:
    return f" ({len(parts)} leaves)" if len(parts) > 1 else ""


def _drawn_lanes(node: Node, axis: str) -> Drawn:
    if isinstance(node, Run):
        few = [str(i) for i in node.indices[:2]]
        more = ", …" if len(node.indices) > 2 else ""
        return Drawn(f"{axis} = {', '.join(few)}{more}" if few else "empty")
    return _add(_drawn_lanes(node.left, axis), _drawn_lanes(node.right, axis))


def _drawn_groups(lanes: int) -> Drawn:
    """Lanes folded neighbours first, as MAX_LEAVES or fewer groups of equal size."""
    size = 1
    while lanes // size > MAX_LEAVES:
        size *= 2
    groups = [
        Drawn(f"lanes {first} … {first + size - 1}", several=True)
        for first in range(0, lanes, size)
    ]
    return fold(groups, "pairwise", _add)


def _drawn_steps(length: int, block: int) -> tuple[str, ...]:
    starts = range(0, length, block)
    shown = list(starts) if len(starts) <= 4 else [starts[0], starts[1], -1, starts[-1]]
    names = []
    for start in shown:
        last = min(start + block, length) - 1
        names.append("…" if start < 0 else f"{start}" if last == start else f"{start} … {last}")
    return ("+0", *names)


# ---- text --------------------------------------------------------------------------------------


def render_text(text: str, id: str, tree: Tree, axis: str, length: int, block: int) -> str:
    """The contract's text and a drawing of its tree, for a terminal."""
    out = [f"contract {id}", *text.splitlines()[1:]]
    for figure in figures(tree, axis, length, block):
        out += ["", figure.title, ""]
        if figure.root is None:
            out.append("  " + " → ".join(figure.steps) + " → sum")
        else:
            out += ["  " + line for line in _dendrogram(figure.root)]
    return "\n".join(out) + "\n"


def _dendrogram(root: Drawn) -> list[str]:
    """One line a leaf; two branches meet on the line of the lower one, further to the right."""
    leaves = root.leaves()
    width = max(len(leaf.label) for leaf in leaves) + 1
    grid: list[list[str]] = [list(leaf.label.rjust(width - 1) + " ") for leaf in leaves]
    row = 0

    def put(line: int, column: int, mark: str, fill: str) -> None:
        cells = grid[line]
        cells += fill * (width + 2 * column - len(cells)) + mark

    def draw(node: Drawn) -> tuple[int, int]:
        """Draws a node; returns its line and column."""
        nonlocal row
        if node.left is None or node.right is None:
            row += 1
            return row - 1, 0
        (top, a), (bottom, b) = draw(node.left), draw(node.right)
        column = max(a, b) + 1
        put(top, column, "┐", "─")
        for line in range(top + 1, bottom):
            put(line, column, "│", " ")
        put(bottom, column, "┴", "─")
        return bottom, column

    line, column = draw(root)
    put(line, column + 1, " sum", "─")
    return ["".join(cells) for cells in grid]


# ---- SVG ---------------------------------------------------------------------------------------

_INK, _FAINT, _LEAF, _MANY, _SUM = "#1f2933", "#7b8794", "#dceafb", "#eef1f4", "#ffd27a"
_EDGE, _WIDTH, _MARGIN, _LEVEL, _BOX = "#3d6fa8", 860, 28, 34, 40


def render_svg(text: str, id: str, tree: Tree, axis: str, length: int, block: int) -> str:
    """The contract's text and a drawing of its tree, as one self-contained SVG picture."""
    body: list[str] = []
    kind = text.splitlines()[0].split(" ")[-1]
    y = _MARGIN + 14.0
    body.append(_text(_MARGIN, y, f"{kind} · {id}", size=19, weight=600))
    y += 12
    for line in text.splitlines()[1:]:
        name, _, value = line.partition(": ")
        for i, piece in enumerate(_wrapped(value, 92)):
            y += 18
            if i == 0:
                body.append(_text(_MARGIN, y, name, fill=_FAINT, size=12.5))
            body.append(_text(_MARGIN + 104, y, piece, size=12.5, mono=True))
    for figure in figures(tree, axis, length, block):
        y += 44
        body.append(_text(_MARGIN, y, figure.title, size=14, weight=600))
        drawn, height = _svg_steps(figure, y) if figure.root is None else _svg_tree(figure.root, y)
        body += drawn
        y += height
    y += _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y:g}" width="{_WIDTH}" '
        f'height="{y:g}" font-family="Helvetica, Arial, sans-serif" role="img">'
        f"<title>{escape(kind)} contract {id}</title>"
        f'<rect width="{_WIDTH}" height="{y:g}" rx="10" fill="#ffffff"/>'
        + "".join(body)
        + "</svg>\n"
    )


def _text(
    x: float, y: float, content: str, *, size: float = 12, fill: str = _INK, weight: int = 400,
    anchor: str = "start", mono: bool = False,
) -> str:  # fmt: skip
    family = ' font-family="Menlo, DejaVu Sans Mono, monospace"' if mono else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}"{family}>{escape(content)}</text>'
    )


def _wrapped(value: str, width: int) -> list[str]:
    lines = [""]
    for word in value.split(" "):
        if len(lines[-1]) + len(word) + 1 > width and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _box(x: float, y: float, w: float, label: str, several: bool = False) -> list[str]:
    fill, dash = (_MANY, ' stroke-dasharray="4 3"') if several else (_LEAF, "")
    parts = [
        f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{_BOX}" rx="5" fill="{fill}" '
        f'stroke="{_EDGE}"{dash}/>'
    ]
    room = max(4, int(w / 6.2))
    lines = _wrapped(label, room)[:3]
    top = y + _BOX / 2 + 4 - 6.5 * (len(lines) - 1)
    parts += [
        _text(x + w / 2, top + 13 * i, line, size=11, anchor="middle")
        for i, line in enumerate(lines)
    ]
    return parts


def _svg_tree(root: Drawn, y: float) -> tuple[list[str], float]:
    """Leaves side by side at the bottom, additions above them, the sum on top."""
    leaves = root.leaves()
    gap = 8 if len(leaves) <= MAX_LEAVES else 4
    width = (_WIDTH - 2 * _MARGIN - gap * (len(leaves) - 1)) / len(leaves)
    depth = _depth(root)
    base = y + 46 + _LEVEL * depth
    lines: list[str] = []
    marks: list[str] = []
    count = 0

    def draw(node: Drawn) -> tuple[float, float, int]:
        """Draws a node; returns where its value comes out, and its height in levels."""
        nonlocal count
        if node.left is None or node.right is None:
            x = _MARGIN + count * (width + gap)
            count += 1
            marks.extend(_box(x, base, width, node.label, node.several))
            return x + width / 2, base, 0
        (xl, yl, dl), (xr, yr, dr) = draw(node.left), draw(node.right)
        level = max(dl, dr) + 1
        x, at = (xl + xr) / 2 if dl == dr else xr, base - _LEVEL * level
        for x0, y0 in ((xl, yl), (xr, yr)):
            lines.append(
                f'<path d="M{x0:g} {y0:g}V{at:g}H{x:g}" fill="none" stroke="{_EDGE}" '
                f'stroke-width="1.6" stroke-linejoin="round"/>'
            )
        marks.append(
            f'<circle cx="{x:g}" cy="{at:g}" r="9" fill="{_SUM}" stroke="{_INK}"/>'
            + _text(x, at + 4.5, "+", size=14, weight=600, anchor="middle")
        )
        return x, at, level

    x, at, _ = draw(root)
    lines.append(f'<path d="M{x:g} {at:g}V{at - 26:g}" stroke="{_EDGE}" stroke-width="1.6"/>')
    marks.append(_text(x + 8, at - 18, "sum", size=12, fill=_FAINT))
    return lines + marks, base + _BOX - y


def _depth(node: Drawn) -> int:
    if node.left is None or node.right is None:
        return 0
    return 1 + max(_depth(node.left), _depth(node.right))


def _svg_steps(figure: Figure, y: float) -> tuple[list[str], float]:
    """A chain: boxes from left to right, joined by arrows."""
    gap, top = 30.0, y + 16
    names = figure.steps
    width = min(120.0, (_WIDTH - 2 * _MARGIN - gap * (len(names) + 1)) / len(names))
    parts: list[str] = []
    x = float(_MARGIN)
    for name in names:
        parts += _box(x, top, width, name, several=name == "…")
        end, middle = x + width + gap, top + _BOX / 2
        parts.append(
            f'<path d="M{x + width + 3:g} {middle:g}H{end - 4:g}m-6 -4l6 4l-6 4" fill="none" '
            f'stroke="{_EDGE}" stroke-width="1.6"/>'
        )
        x = end
    parts.append(_text(x, top + _BOX / 2 + 4, "sum", size=12, fill=_FAINT))
    return parts, _BOX + 16
