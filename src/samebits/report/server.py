"""The outcome of `samebits check --server` in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from samebits.check.server import Difference, ServerReport


def show(report: ServerReport, console: Console) -> None:
    """Prints one line for each kind of request, and the first difference of each."""
    counts = sorted({r.concurrency for r in report.rounds})
    table = Table(title=f"{report.model} at {report.url}", title_justify="left")
    table.add_column("request")
    for count in counts:
        table.add_column(f"{count} at a time", justify="right")
    for kind in dict.fromkeys(r.kind for r in report.rounds):
        cells = []
        for count in counts:
            found = next(r for r in report.rounds if (r.kind, r.concurrency) == (kind, count))
            style = "green" if found.same == found.sent else "red"
            cells.append(f"[{style}]{found.same} of {found.sent} same[/]")
        table.add_row(kind, *cells)
    console.print(table)
    for found in report.rounds:
        if found.first is not None:
            console.print(
                f"{found.kind}, {found.concurrency} at a time: {_words(found.first)}",
                markup=False, highlight=False,
            )  # fmt: skip
    if report.refused:
        console.print(f"not taken by the server: {', '.join(report.refused)}", highlight=False)
    compared = "tokens and logprobs" if report.logprobs else "texts (the server gives no logprobs)"
    counted = "".join(f", {value} {name}" for name, value in report.counters.items())
    console.print(
        f"compared: {compared}; {report.others} other requests{counted}; {report.seconds} s",
        markup=False, highlight=False,
    )  # fmt: skip


def _words(found: Difference) -> str:
    def side(part: tuple[str, float | None]) -> str:
        token, value = part
        return repr(token) if value is None else f"{token!r} {value!r}"

    return (
        f"the first difference is at token {found.token}: alone {side(found.alone)}, "
        f"among others {side(found.among)}"
    )
