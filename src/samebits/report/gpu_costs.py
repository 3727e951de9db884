"""The table of ``samebits bench gpu``, line by line as they come, and what it comes to by area."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import geometric_mean

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.bench.gpu import OURS, Line
from samebits.bench.gpu_timing import Ceilings
from samebits.report.costs import duration


def show(lines: Iterable[Line], ceilings: Ceilings, console: Console) -> list[Line]:
    """Prints every line when it is there, then a summary; returns the lines."""
    console.print(
        f"ceilings of this GPU, measured: {ceilings.bandwidth / 1e12:.2f} TB/s {ceilings.moved}, "
        f"{ceilings.flops / 1e12:.0f} TFLOP/s in bf16",
        highlight=False,
    )
    done: list[Line] = []
    for line in lines:
        if not done or line.area != done[-1].area:
            console.print(f"\n[bold]{line.area}[/]", highlight=False)
        done.append(line)
        console.print(_row(line, ceilings))
    console.print()
    console.print(summary(done))
    return done


def _row(line: Line, ceilings: Ceilings) -> Text:
    case = line.case if line.case.startswith(line.group) else f"{line.group} {line.case}"
    row = Text(f"  {case:<38}")
    if line.ours is None:
        row.append(f"failed: {line.errors.get(OURS, 'no time')}", style="red")
        return row
    share = line.floor(ceilings) / line.ours
    row.append(f"{duration(line.ours):>9}  {line.rate(ceilings):>13}  {share:>4.0%} of ceiling  ")
    for name, seconds in line.seconds.items():
        if name != OURS:
            style = "dim"
            if name in line.against:
                style = "green" if seconds / line.ours >= (line.target or 1.0) else "yellow"
            row.append(f"  {seconds / line.ours:.2f}x", style=style)
            row.append(f" {name}", style="dim")
    for name, error in line.errors.items():
        row.append(f"  {name}: {error[:60]}", style="dim")
    return row


def summary(lines: list[Line]) -> Table:
    """Geometric mean and worst ratio of every area, against each contender."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for name in ("area", "against", "geometric mean", "worst", "at", "lines"):
        text = name in ("area", "against", "at")
        table.add_column(name, justify="left" if text else "right")
    last = ""
    for area, against in dict.fromkeys(
        (line.area, name) for line in lines for name in line.seconds if name != OURS
    ):
        ratios = [
            (line.seconds[against] / line.ours, line)
            for line in lines
            if line.area == area and line.ours is not None and against in line.seconds
        ]
        if not ratios:
            continue
        worst, at = min(ratios, key=lambda pair: pair[0])
        mean = geometric_mean([ratio for ratio, _ in ratios])
        case = at.case if at.case.startswith(at.group) else f"{at.group} {at.case}"
        shown, last = (area if area != last else ""), area
        table.add_row(shown, against, f"{mean:.3f}x", f"{worst:.2f}x", case, str(len(ratios)))
    return table
