"""Revealed trees on a terminal, as JSON and as pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from samebits.errors import RevealError
from samebits.report import tree_svg
from samebits.reveal.front import reveal_request
from samebits.reveal.operations import Request
from samebits.reveal.sweep import Kind, sweep


def found(
    request: Request, numbers: Sequence[int | None], row: int, console: Console
) -> list[Kind]:
    """The kinds of trees at some numbers of rows (None: a function of one vector), with progress.

    One number is revealed at `row`; of several, every row is looked at. Errors as `sweep`.
    """
    if len(numbers) == 1:
        m = numbers[0]
        return [Kind(reveal_request(replace(request, m=m), row=row), [] if m is None else [m])]
    with console.status("", spinner="dots") as status:
        return sweep(
            request, [m for m in numbers if m is not None],
            lambda m: status.update(f"{m} of {numbers[-1]} rows"),
        )  # fmt: skip


def show(kinds: Sequence[Kind], console: Console, files: Sequence[Path]) -> None:
    """Prints every kind: where it occurs, its tree in words, its arithmetic."""

    def line(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    for number, kind in enumerate(kinds, 1):
        where = "; ".join(_where(kind))
        if len(kinds) > 1:
            line(f"tree {number} of {len(kinds)}: {where}", "bold")
        elif len(kind.whole) > 1:
            line(f"one tree: {where}", "bold")
        line(kind.found.describe())
    for path in files:
        line(f"written {path}")


def _where(kind: Kind) -> Iterator[str]:
    if kind.whole:
        yield f"m = {spans(kind.whole)}"
    for m, rows in kind.partly.items():
        yield f"row{'s' if len(rows) > 1 else ''} {spans(rows)} of m = {m}"


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers with stretches folded: 1-4, 8, 16-32."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def to_json(kinds: Sequence[Kind]) -> str:
    """All kinds as JSON."""
    return json.dumps([kind.to_data() for kind in kinds], indent=1)


def draw(kinds: Sequence[Kind], path: Path) -> list[Path]:
    """One SVG a kind: `path`, and for further kinds its name with -2, -3, ...

    Raises:
        RevealError: a file cannot be written.
    """
    written = []
    for number, kind in enumerate(kinds, 1):
        name = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        note = "; ".join(_where(kind)) if len(kinds) > 1 else ""
        picture = tree_svg.draw(kind.found.tree, title=kind.found.name, note=note)
        try:
            name.write_text(picture)
        except OSError as error:
            raise RevealError(f"{name} cannot be written: {error.strerror}") from error
        written.append(name)
    return written
