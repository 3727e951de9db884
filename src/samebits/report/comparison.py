"""Two machines compared: a table in the terminal, or JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from samebits.check.machines import Comparison, Line

_COLOURS = {"equal": "green", "explained": "yellow", "defect": "red", "missing": "dim"}


def to_json(found: Comparison) -> str:
    """The comparison as JSON."""
    return json.dumps(dataclasses.asdict(found), indent=1)


def show(found: Comparison, console: Console) -> None:
    """Prints what differs, and how much is equal."""
    console.print(f"first   {escape(found.first)}", highlight=False)
    console.print(f"second  {escape(found.second)}", highlight=False)
    counts = (f"[{c}]{found.count(v)} {v}[/]" for v, c in _COLOURS.items())  # type: ignore[arg-type]
    console.print("\n" + ", ".join(counts) + "\n", highlight=False)
    shown = [line for line in found.lines if line.verdict != "equal"]
    if not shown:
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("case", "verdict", "apart", "allowed", "why"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("case", "verdict"))
    for line in shown:
        table.add_row(
            escape(line.name), f"[{_COLOURS[line.verdict]}]{line.verdict}[/]", *_distance(line),
            escape(line.why),
        )  # fmt: skip
    console.print(table, highlight=False)


def _distance(line: Line) -> Iterator[str]:
    for number in (line.apart, line.allowed):
        yield "" if number is None else f"{number:.2g}"
