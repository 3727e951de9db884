"""``samebits status``."""

from __future__ import annotations

from typing import Annotated

import typer

from samebits.cli.receipts import errors


def status(
    watch: Annotated[bool, typer.Option("--watch", help="go on until interrupted")] = False,
    url: Annotated[
        str, typer.Option(help="where the server offers its metrics (SAMEBITS_METRICS=9464)")
    ] = "http://127.0.0.1:9464/metrics",
    interval: Annotated[float, typer.Option(min=0.1, help="seconds between two readings")] = 2.0,
    rules: Annotated[
        bool, typer.Option("--rules", help="print the alarms as rules for Prometheus, and end")
    ] = False,
) -> None:
    """Calls, checks, mismatches, replays and receipts of a serving process, and its alarms.

    Exit status: 0 nothing to worry about, 1 an alarm rings, 2 the server does not answer.
    """
    from samebits.guard import alarms
    from samebits.report import status as report
    from samebits.report.console import open_console

    if rules:
        typer.echo(alarms.rules(), nl=False)
        return
    with errors("status"):
        if watch:
            try:
                report.watch(url, open_console(), interval)
            except KeyboardInterrupt:
                raise typer.Exit(0) from None
        elif not report.show(url, open_console()):
            raise typer.Exit(1)
