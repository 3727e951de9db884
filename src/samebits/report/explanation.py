"""An explanation in the terminal and as a page: where two runs part, why, and what was tried."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from rich.console import Console
from rich.markup import escape as plain
from rich.table import Table

from samebits.check.explanation import KINDS, Explanation, Factor, Swap
from samebits.check.result import Layer
from samebits.report import svg

OUTCOMES = {
    "first": "the first run's bits",
    "second": "the second run's bits",
    "both": "the bits of both runs",
    "other": "other bits",
    "failed": "could not run",
}
MOODS = {"first": "same", "both": "same", "second": "d3", "other": "d5", "failed": "failed"}


def lines(found: Explanation) -> Iterator[tuple[str, str]]:
    """The facts as pairs of a label and a text."""
    place, amount = found.place, found.amount
    if place is not None:
        op = (place.op or "").removesuffix(".default")
        kind = f" ({place.module_kind})" if place.module_kind else ""
        module = f"{place.module or 'the model itself'}{kind}"
        yield "where", f"{op} in {module}" if op else module
        if place.site:
            yield "called at", place.site
        if place.other_op:
            yield "second run", place.other_op
        if any(place.shapes):
            shapes = [", ".join(side) or "no tensors" for side in place.shapes]
            yield "operands", shapes[0] if shapes[0] == shapes[1] else " against ".join(shapes)
    if found.cause:
        yield "cause", found.cause
    if found.trigger:
        yield "trigger", found.trigger
    if amount is not None and amount.elements:
        text = f"{amount.differing:,} of {amount.elements:,} elements, up to {amount.max_ulp:,} ulp"
        if amount.nonfinite:
            text += f", {amount.nonfinite:,} NaN or infinite"
        yield "how much", text
    for swap in found.swaps:
        yield "exchanged", _swapped(swap)
    yield "so", found.should


def _swapped(swap: Swap) -> str:
    calls = f" ({swap.replaced} calls)" if swap.replaced else ""
    if not swap.differing:
        return f"{swap.what}{calls} under its contract: no module differs any more"
    rest = f"{swap.differing} module outputs still differ, first {swap.first}"
    return f"{swap.what}{calls} under its contract: {rest}"


def show(found: Explanation, console: Console, files: list[Path]) -> None:
    """Prints an explanation."""
    style = "green" if found.kind is None else "yellow" if found.allowed else "red"
    console.print(f"\n[bold]{plain(found.verdict_line)}[/]", style=style, highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in lines(found):
        table.add_row(label, plain(text))
    for i, line in enumerate(found.evidence):
        table.add_row("" if i else "seen", plain(line))
    for i, factor in enumerate(found.factors):
        note = f" ({factor.note})" if factor.note else ""
        text = f"{factor.name}: {factor.change}: {OUTCOMES[factor.outcome]}{note}"
        table.add_row("" if i else "tried", plain(text))
    for tree in found.trees:
        table.add_row("tree", plain(tree))
    console.print(table)
    console.print(f"[dim]{found.passes} forward passes[/]", highlight=False)
    for file in files:
        console.print(f"[dim]written[/] {plain(str(file))}", highlight=False, soft_wrap=True)


def render(found: Explanation) -> str:
    """The page's text: one file that needs nothing else."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    mood = "good" if found.kind is None else "" if found.allowed else "bad"
    kind = KINDS[found.kind] if found.kind else None
    head = (
        '<div class="top"><span class="brand">same<i>bits</i> explain</span>'
        f'<span class="soft">{found.passes} forward passes</span></div>'
        f"<h1>{escape(found.verdict_line)}</h1>"
        f'<p class="lead soft">{escape(found.cause or found.should)}</p><div class="tiles">'
        f'<div class="tile {mood}"><b>{escape(kind.title if kind else "equal")}</b>'
        f"<span>{escape(kind.means if kind else 'every bit of every module')}</span></div></div>"
    )
    environment = "".join(
        f"<div><span>{escape(key)}</span><b>{escape(value)}</b></div>"
        for key, value in found.environment.items()
    )
    measured = f'<section><h2>Measured on</h2><div class="env">{environment}</div></section>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>samebits: {escape(found.target)}</title><style>{style}</style></head>"
        f"<body><main>{head}<section><h2>Why</h2>{section(found)}</section>"
        f"{_modules(found)}{measured}</main></body></html>\n"
    )


def section(found: Explanation) -> str:
    """The facts, what was seen, and what was tried, as HTML."""
    facts = "".join(
        f'<tr><td class="soft">{escape(label)}</td><td>{escape(text)}</td></tr>'
        for label, text in lines(found)
    )
    seen = "".join(f"<li>{escape(line)}</li>" for line in found.evidence)
    trees = "".join(f"<pre>{escape(tree)}</pre>" for tree in found.trees)
    return (
        f'<div class="scroll"><table>{facts}</table></div>'
        + (f"<h3>What was seen</h3><ul>{seen}</ul>" if seen else "")
        + (f"<h3>How it added</h3>{trees}" if trees else "")
        + _factors(found.factors)
    )


def _factors(factors: tuple[Factor, ...]) -> str:
    if not factors:
        return ""
    rows = "".join(
        f"<tr><td>{escape(f.name)}</td><td>{escape(f.change)}</td><td>"
        f'<svg class="dot" width="11" height="11"><rect width="11" height="11" '
        f'class="{MOODS[f.outcome]}"/>'
        f"</svg> {OUTCOMES[f.outcome]}{'<small>' + escape(f.note) + '</small>' if f.note else ''}"
        "</td></tr>"
        for f in factors
    )
    return (
        '<h3>The operation by itself, with one thing changed</h3><p class="note">Each line starts '
        "from the second run's call. What turns its bits into the first run's is the trigger.</p>"
        '<div class="scroll"><table><tr><th>factor</th><th>change</th><th>result</th></tr>'
        f"{rows}</table></div>"
    )


def _modules(found: Explanation) -> str:
    layers = tuple(Layer(m.name, m.kind, m.differing, m.elements) for m in found.modules)
    if len(layers) < 2:
        return ""
    return (
        '<section><h2>Modules</h2><p class="note">The share of the request\'s tokens that differ, '
        f"in the order of execution.</p>{svg.layers(layers, 'modules')}</section>"
    )
