"""The pictures of a report, as inline SVG. Colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from samebits.check.noise import FIRST
from samebits.check.result import Case, Layer, Noise, Outcome, Speed

SHADES = ((0.001, "d1"), (0.01, "d2"), (0.1, "d3"), (0.5, "d4"))


def shade(share: float) -> str:
    """Style class for a share of differing elements: ``same``, or ``d1`` (few) to ``d5`` (most)."""
    if share <= 0:
        return "same"
    return next((kind for limit, kind in SHADES if share < limit), "d5")


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _rect(x: float, y: float, w: float, h: float, kind: str, title: str = "") -> str:
    tip = f"<title>{escape(title)}</title>" if title else ""
    place = f'x="{x:.2f}" y="{y:.2f}" width="{w:.2f}" height="{h:.2f}"'
    return f'<rect {place} class="{kind}">{tip}</rect>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def cells(outcome: Outcome) -> str:
    """One square for each case of a test."""
    size, gap, per_line = 9, 2, 19
    lines = -(-len(outcome.cases) // per_line)
    parts = []
    for i, case in enumerate(outcome.cases):
        share = case.differing / max(case.elements, 1)
        kind = "failed" if case.error else shade(share)
        tip = case.error or f"{case.differing:,} of {case.elements:,} elements differ"
        x, y = (i % per_line) * (size + gap), (i // per_line) * (size + gap)
        parts.append(_rect(x, y, size, size, kind, f"{case.label}: {tip}"))
    width = min(len(outcome.cases), per_line) * (size + gap)
    return _svg(width, lines * (size + gap), "cases", parts)


def batch_map(cases: Sequence[Case], label: str) -> str:
    """Batch size to the right, the batch's rows downward: how much of each request differs."""
    column, height, top, left = 25.0, 236.0, 20.0, 26.0
    most = max(len(case.rows) for case in cases)
    row_height = height / most
    parts = [_text(0, 12, "M", "axis")]
    for i, case in enumerate(cases):
        x = left + i * column
        parts.append(_text(x + column / 2 - 1.5, 12, str(case.x), "axis", "middle"))
        each = case.elements // max(len(case.rows), 1)
        for row, differing in enumerate(case.rows):
            share = differing / max(each, 1)
            tip = f"M = {case.x}, row {row}: {differing:,} of {each:,} elements differ"
            gap = 1 if row_height > 3 else 0.4
            y = top + row * row_height
            parts.append(_rect(x, y, column - 3, row_height - gap, shade(share), tip))
    for row in (0, most // 2, most - 1):
        y = top + (row + 0.5) * row_height + 3.5
        parts.append(_text(left - 6, y, str(row), "axis", "end"))
    return _svg(left + len(cases) * column, top + height + 2, label, parts)


def distances(cases: Sequence[Case], label: str) -> str:
    """How many differing elements are how many units in the last place away."""
    width = max((len(case.ulps) for case in cases), default=0)
    counts = [sum(c.ulps[i] for c in cases if i < len(c.ulps)) for i in range(width)]
    nonfinite = sum(case.nonfinite for case in cases)
    names = [_range(i) for i in range(width)] + (["NaN"] if nonfinite else [])
    counts += [nonfinite] if nonfinite else []
    if not counts:
        return ""
    column, height, top = min(44.0, 560 / len(counts)), 130.0, 16.0
    every = 1 if column > 30 else 2
    most = max(counts)
    parts = []
    for i, (name, count) in enumerate(zip(names, counts, strict=True)):
        h = height * count / most
        x = i * column
        if count:
            tip = f"distance {name}: {count:,} elements"
            parts.append(_rect(x + 2, top + height - h, column - 4, max(h, 1), "d4", tip))
            if every == 1 or h > 8:
                at = top + height - h - 4
                parts.append(_text(x + column / 2, at, _short(count), "axis", "middle"))
        if i % every == 0 or name == "NaN":
            parts.append(_text(x + column / 2, top + height + 14, name, "axis", "middle"))
    parts.append(_rect(0, top + height, len(counts) * column, 1, "line"))
    return _svg(len(counts) * column, top + height + 20, label, parts)


def _range(power: int) -> str:
    """Name of the distances in (2**(power-1), 2**power]."""
    digits = str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return str(power + 1) if power < 2 else f"≤2{digits}"


def _short(count: int) -> str:
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= limit:
            return f"{count / limit:.3g}{unit}"
    return str(count)


def layers(steps: Sequence[Layer], label: str) -> str:
    """One bar for each module in order of execution: the share of its output that differs."""
    count = len(steps)
    width, height, top = 1000.0, 120.0, 26.0
    column = width / max(count, 1)
    parts = []
    first = next((i for i, layer in enumerate(steps) if layer.differing), None)
    for i, layer in enumerate(steps):
        share = layer.differing / max(layer.elements, 1)
        x = i * column
        tip = f"{layer.name} ({layer.kind}): {layer.differing:,} of {layer.elements:,} differ"
        w = max(column - (1 if column > 3 else 0.15), 0.5)
        parts.append(_rect(x, top, w, height, "back", tip))
        if share:
            h = max(height * share, 2)
            parts.append(_rect(x, top + height - h, w, h, "d5" if i == first else "d3", tip))
    if first is not None:
        x = (first + 0.5) * column
        anchor = "start" if x < width * 0.7 else "end"
        parts.append(f'<path d="M{x - 5:.1f} {top - 9} h10 l-5 7 z" class="d5"/>')
        shift = 10 if anchor == "start" else -10
        parts.append(_text(x + shift, top - 3, steps[first].name, "first", anchor))
    parts.append(_text(0, top + height + 15, "first module", "axis"))
    parts.append(_text(width, top + height + 15, f"last of {count}", "axis", "end"))
    return _svg(width, top + height + 20, label, parts)


def noise(found: Noise, counts: Sequence[int], kind: str, label: str) -> str:
    """Sizes of differences, observed as bars, between other orders as a line; share of elements.

    Args:
        found: what fixes the axes, so that two pictures of it can be compared.
        counts: the observed differences.
        kind: style class of the bars.
        label: what the picture is.
    """
    every = [found.predicted, found.stock, *([found.switched] if found.switched else [])]
    used = [i for c in every for i, n in enumerate(c) if n and i] or [1]
    wall = _bin(found.reach)
    first, last = max(min(used) - 1, 1), min(max(*used, wall or 1) + 1, len(found.predicted) - 1)
    most = 1.1 * max(n / max(sum(c), 1) for c in every[:2] for n in c[1:]) or 1.0
    column, height, top = min(24.0, 400 / (last - first + 3)), 120.0, 30.0
    places = [(0, 8.0)] + [(i, 8 + column * (i - first + 2)) for i in range(first, last + 1)]
    base, parts, total = top + height, [], max(sum(counts), 1)

    def level(some: Sequence[int], i: int) -> float:
        return min(height * some[i] / max(sum(some), 1) / most, height)

    for i, x in places:
        h = level(counts, i)
        if h:
            name = f"from {_size(i)} on" if i else "no difference"
            tip = f"{name}: {counts[i]:,} of {total:,} elements"
            parts.append(_rect(x + 1, base - h, column - 2, max(h, 1.5), kind, tip))
        if not i and counts[0]:
            share = f"{100 * counts[0] / total:.3g} %"
            parts.append(_text(x, base - h - 5, share, "axis"))
        if not i or (i + FIRST - 1) % 4 == 0:
            parts.append(_text(x + column / 2, base + 14, _size(i), "axis", "middle"))
    width = places[-1][1] + column
    parts.append(_rect(0, base, width, 1, "line"))
    line = [f"M8 {base - level(found.predicted, 0):.1f}h{column:.1f}M{places[1][1]:.1f} {base:.1f}"]
    line += [f"V{base - level(found.predicted, i):.1f}h{column:.1f}" for i, _ in places[1:]]
    parts.append(f'<path d="{"".join(line)}V{base:.1f}" class="outline"/>')
    if wall and wall <= last:
        x = places[1][1] + column * (wall - first + 1)
        parts.append(f'<path d="M{x:.1f} {top - 8:g}V{base:g}" class="outline dashed"/>')
        parts.append(_text(x, top - 13, "certified reach of every order (median)", "axis", "end"))
    parts.append(_text(width, base + 30, "size of the difference, results = 1", "axis", "end"))
    return _svg(width + 2, base + 36, label, parts)


def _bin(size: float) -> int | None:
    """The bin of `Noise` that holds a size; None if it is not finite."""
    return max(1, math.floor(math.log2(size)) - FIRST + 1) if 0 < size < math.inf else None


def _size(index: int) -> str:
    """Name of a bin of `Noise`: 0, or the power of two that it begins with."""
    power = str(index + FIRST - 1).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"2{power}" if index else "0"


def costs(speeds: Sequence[Speed]) -> str:
    """Pairs of bars: time on stock torch and with the switch on; shorter is better."""
    left, width, line, top = 150.0, 420.0, 46.0, 4.0
    parts = []
    for i, speed in enumerate(speeds):
        y = top + i * line
        most = max(speed.stock, speed.switched)
        parts.append(_text(left - 10, y + 21, speed.label, "", "end"))
        pairs = ((speed.stock, "stockbar"), (speed.switched, "sbbar"))
        for j, (seconds, kind) in enumerate(pairs):
            w = width * seconds / most
            parts.append(_rect(left, y + j * 17, w, 14, kind))
            amount = rate(seconds, speed.unit)
            parts.append(_text(left + w + 7, y + j * 17 + 11, amount, "axis"))
        parts.append(_text(left + width + 190, y + 21, f"{speed.ratio:.2f}×", "ratio", "end"))
    return _svg(left + width + 192, top + len(speeds) * line, "times", parts)


def rate(seconds: float, unit: str) -> str:
    """A time for people: a rate of tokens or texts, or the time of a call."""
    if unit == "call":
        for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
            if seconds * factor >= 1:
                return f"{seconds * factor:.3g} {name}"
        return f"{seconds * 1e9:.3g} ns"
    return f"{1 / seconds:,.0f} {unit}s/s" if seconds < 0.1 else f"{1 / seconds:.3g} {unit}s/s"
