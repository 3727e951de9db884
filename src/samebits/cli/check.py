"""``samebits check``: the promises, of a target here or of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer


def check(
    target: Annotated[
        str,
        typer.Argument(
            help="tiny, smollm2, minilm, module:function (model, factory), or ops: single "
            "operations on up to 1,100 rows, which takes many minutes on a CPU"
        ),
    ] = "tiny",
    promise: Annotated[
        list[str] | None, typer.Option(help="a promise or test to run; may be repeated")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(help="module:name of the inputs of module:function")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="random inputs instead, e.g. 8x4096:bfloat16")
    ] = None,
    out: Annotated[Path, typer.Option(help="directory of the report")] = Path("."),
    json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
    html: Annotated[bool, typer.Option(help="write the HTML page")] = True,
    costs: Annotated[bool, typer.Option(help="measure times and generate text")] = True,
    explain: Annotated[
        bool, typer.Option("--explain", help="find out why bits differ: operation and cause")
    ] = False,
    seed: Annotated[int, typer.Option(help="seed of generated inputs")] = 0,
    device: Annotated[str, typer.Option(help="cpu, or cuda for a wide sweep on a GPU")] = "cpu",
    server: Annotated[
        str | None,
        typer.Option(help="URL of an OpenAI-compatible server, which is asked instead of a target"),
    ] = None,
) -> None:
    """Test the promises on stock PyTorch and with samebits on; or those of a server, from outside.

    Exit status: 0 all promises hold with the switch on, 1 one is broken, 2 could not run.
    """
    if server is not None:
        _check_server(server, seed, json)
    from samebits.check import check as run
    from samebits.check.promises import select
    from samebits.check.targets import load
    from samebits.errors import SamebitsError
    from samebits.report import save, terminal
    from samebits.report.console import open_console

    console = open_console(stderr=json)
    try:
        select(promise)
        with terminal.progress(console, target) as tell:
            subject = load(target, inputs=inputs, shape=shape, device=device)
            report = run(
                subject, promises=promise, costs=costs, explain=explain, seed=seed, progress=tell
            )
    except SamebitsError as error:
        console.print(f"samebits check: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None
    files: list[Path] = []
    status, failure = report.exit_status, ""
    try:
        files = save(report, out, page=html)
    except OSError as error:  # the answer is shown all the same
        status, failure = 2, f"samebits check: cannot write to {out}: {error.strerror}"
    if json:
        print(report.to_json())
    else:
        terminal.show(report, console, files)
    if failure:
        console.print(failure, style="red", markup=False, highlight=False)
    raise typer.Exit(status)


def _check_server(url: str, seed: int, json: bool) -> NoReturn:
    from samebits.check.server import ServerError, check_server
    from samebits.report import server, terminal
    from samebits.report.console import open_console

    console = open_console(stderr=json)
    try:
        with terminal.progress(console, url) as tell:
            report = check_server(url, seed=seed, progress=tell)
    except ServerError as error:
        console.print(f"samebits check: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None
    if json:
        print(report.to_json())
    else:
        server.show(report, console)
    raise typer.Exit(report.exit_status)
