"""The report in the terminal: a progress bar while it runs, a table when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from samebits.check import Progress as Step
from samebits.check.explanation import KINDS
from samebits.check.result import Outcome, Report, Speed
from samebits.report.console import lines, open_bar
from samebits.report.summary import UNTESTED, headline, sentence
from samebits.report.svg import rate

SIDES = (("stock", "stock PyTorch"), ("switched", "samebits"))
COLOURS = {0: "green", 1: "red", 2: "yellow"}


@contextmanager
def progress(console: Console, target: str) -> Iterator[Callable[[Step], None]]:
    """A progress bar for the length of the block; gives the callback for `samebits.check`.

    Where there is no terminal, standard error gets a line a step.
    """
    place = open_bar(console)
    if place is None:
        line = lines(target)
        yield lambda step: line(step.done, step.total, step.what)
        return
    columns = (
        TextColumn("[bold]{task.fields[target]}"),
        BarColumn(bar_width=32),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=place, transient=True) as bar:
        task = bar.add_task("loading", target=target, total=None)

        def tell(step: Step) -> None:
            bar.update(task, total=step.total, completed=step.done, description=step.what)

        yield tell


def show(report: Report, console: Console, files: list[Path]) -> None:
    """Prints the report."""
    console.print(f"\n[bold]{escape(headline(report))}[/]", style=COLOURS[report.exit_status])
    console.print(escape(sentence(report)), style="dim", highlight=False)
    console.print()
    console.print(_tests(report))
    console.print(f"[dim]not tested here: {UNTESTED}[/]", highlight=False)
    console.print()
    for line in (*_traces(report), *_causes(report), *_errors(report)):
        console.print(line, highlight=False)
    if report.speed:
        console.print()
        console.print(_speed(report.speed))
        console.print()
    for line in _texts(report):
        console.print(line, highlight=False)
    for file in files:
        console.print(f"[dim]written[/] {escape(str(file))}", highlight=False, soft_wrap=True)


def _tests(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("promise, test", "stock PyTorch", "samebits"):
        table.add_column(name, no_wrap=True)
    last = ""
    for test in report.tests:
        if test.promise != last:
            last = test.promise
            table.add_row(f"[bold]{last}[/]")
        if test.skipped is not None:
            table.add_row(f"  {test.title}", *["[dim]does not apply[/]"] * 2)
        else:
            table.add_row(f"  {test.title}", _cell(test.stock), _cell(test.switched))
    return table


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "[dim]not tested[/]"
    if outcome.verdict == "same":
        return f"[green]✓ same[/] [dim]{len(outcome.cases)} cases[/]"
    if outcome.verdict == "error":
        return "[yellow]! could not run[/]"
    bad = sum(case.differing > 0 for case in outcome.cases)
    share = 100 * outcome.worst.differing / outcome.worst.elements
    return f"[red]✗ {bad}/{len(outcome.cases)} differ[/] [dim]≤ {share:.3g} %[/]"


def _traces(report: Report) -> Iterator[str]:
    """The first operation that differs, for each side, with the tests that it breaks."""
    for side, name in SIDES:
        places: dict[str, list[str]] = {}
        for test in report.tests:
            outcome: Outcome | None = getattr(test, side)
            found = outcome.divergence if outcome else None
            if found is not None:
                op = (found.op or "").removesuffix(".default")
                place = " in ".join(filter(None, (op, found.op_module or found.module)))
                verdict = f", {found.noise.verdict}" if found.noise else ""
                places.setdefault((place or "not found") + verdict, []).append(test.title)
        for place, titles in places.items():
            yield f"first to differ, {name}: [bold]{escape(place)}[/] [dim]({', '.join(titles)})[/]"


def _causes(report: Report) -> Iterator[str]:
    """Why bits differ, once for each cause, where it was asked for."""
    for side, name in SIDES:
        outcomes: list[Outcome | None] = [getattr(test, side) for test in report.tests]
        found = [o.explanation for o in outcomes if o and o.explanation and o.explanation.kind]
        for cause in dict.fromkeys((e.kind, e.cause) for e in found):
            kind, text = cause
            yield f"why, {name}: [bold]{KINDS[kind or 'unknown'].title}[/]: {escape(text)}"


def _errors(report: Report) -> Iterator[str]:
    """Each error once."""
    for side, name in SIDES:
        outcomes: list[Outcome | None] = [getattr(test, side) for test in report.tests]
        errors = dict.fromkeys(outcome.error for outcome in outcomes if outcome and outcome.error)
        yield from (f"[yellow]could not run, {name}:[/] {escape(error)}" for error in errors)


def _speed(speeds: tuple[Speed, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("speed", "stock PyTorch", "samebits", "ratio"):
        table.add_column(name, justify="left" if name == "speed" else "right")
    for speed in speeds:
        ratio = f"[{'green' if speed.ratio >= 1 else 'yellow'}]{speed.ratio:.2f}x[/]"
        row = (speed.label, rate(speed.stock, speed.unit), rate(speed.switched, speed.unit), ratio)
        table.add_row(*row)
    return table


def _texts(report: Report) -> Iterator[str]:
    for side, name in SIDES:
        texts = [text for text in report.texts if text.side == side]
        if not texts:
            continue
        steps = sum(text.steps for text in texts)
        differing = sum(text.differing_steps for text in texts)
        other = sum(text.first_token is not None for text in texts)
        verdict = (
            f"[red]logits differ at {differing} of {steps} tokens[/], "
            f"{other} of {len(texts)} texts came out otherwise"
            if differing
            else f"[green]the same logits at all {steps} tokens[/]"
        )
        yield f"text alone and with {texts[0].company} others, {name}: {verdict}"
