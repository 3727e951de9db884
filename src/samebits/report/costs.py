"""The cost table of ``samebits bench``, printed line by line as the rows come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from samebits.bench import Row
from samebits.report.console import open_console

_COLUMNS = ("area", "case", "stock PyTorch", "samebits", "ratio", "aim")
#: Their widths where lines are written one at a time: wider than any area or case.
_WIDTHS = (17, 42, 13, 8, 7, 8)


def show(rows: Iterable[Row], *, as_json: bool = False, console: Console | None = None) -> None:
    """Prints the rows as they come, as a table or as one JSON list.

    A terminal has one table that grows; in a pipe or file each row is written when it is there.
    """
    if as_json:
        print(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=1))
        return
    console = console or open_console()
    if not console.is_terminal:
        print(_line(_COLUMNS), file=console.file, flush=True)
        for cells in _cells(rows):
            print(_line(cells), file=console.file, flush=True)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in ("area", "case") else "right")
    with Live(table, console=console, refresh_per_second=4, vertical_overflow="visible"):
        for cells in _cells(rows):
            table.add_row(*cells)


def _cells(rows: Iterable[Row]) -> Iterator[tuple[str, ...]]:
    """The cells of every row, with markup; an area is named once."""
    last = ""
    for row in rows:
        area, last = (row.area if row.area != last else ""), row.area
        yield area, row.name, _shown(row.stock), _shown(row.ours), _ratio(row), _aim(row)


def _line(cells: Sequence[str]) -> str:
    """One row as plain text: names to the left, figures to the right."""
    area, case, *figures = (Text.from_markup(cell).plain for cell in cells)
    left, middle, *widths = _WIDTHS
    shown = [f"{cell:>{width}}" for cell, width in zip(figures, widths, strict=True)]
    return "  ".join([f"{area:<{left}}", f"{case:<{middle}}", *shown]).rstrip()


def duration(seconds: float) -> str:
    """Seconds in a unit that suits them."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return ""
    met = row.ratio >= (row.target if row.target is not None else 1.0)
    return f"[{'green' if met else 'yellow'}]{row.ratio:.2f}x[/]"


def _aim(row: Row) -> str:
    return "" if row.target is None else f"[dim]≥ {row.target:.3g}x[/]"
