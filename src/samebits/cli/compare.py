"""The commands ``samebits record`` and ``samebits compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def record(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    contract: Annotated[
        str,
        typer.Option(help="device: each device class's own; portable, exact: the same on all"),
    ] = "device",
    out: Annotated[Path, typer.Option("--out", "-o", help="file to write")] = Path(
        "samebits-record.json"
    ),
) -> None:
    """Record what this machine computes, contract by contract, for `samebits compare`."""
    from samebits.check import machines
    from samebits.errors import SamebitsError

    try:
        found = machines.record(device, contract)
        out.write_text(found.to_json(), encoding="utf-8")
    except (SamebitsError, OSError) as error:
        typer.echo(f"samebits record: {error}", err=True)
        raise typer.Exit(2) from None
    computed = sum(not e.refused for e in found.entries)
    typer.echo(f"written {out}: {computed} results, {len(found.entries) - computed} refused")


def compare(
    first: Annotated[Path, typer.Argument(help="a file of `samebits record`")],
    second: Annotated[Path, typer.Argument(help="another machine's")],
    json: Annotated[bool, typer.Option("--json", help="print the comparison as JSON")] = False,
) -> None:
    """Compare two machines: equal, explained by their contracts, or a defect of one.

    Exit status: 0 no defect, 1 a defect, 2 could not compare.
    """
    from samebits.check import machines
    from samebits.errors import SamebitsError
    from samebits.report import comparison
    from samebits.report.console import open_console

    try:
        found = machines.compare(machines.load(first), machines.load(second))
    except SamebitsError as error:
        typer.echo(f"samebits compare: {error}", err=True)
        raise typer.Exit(2) from None
    if json:
        print(comparison.to_json(found))
    else:
        comparison.show(found, open_console())
    raise typer.Exit(found.exit_status)
