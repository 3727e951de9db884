"""The command ``samebits explain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from samebits.check import Explanation


def explain(
    target: Annotated[
        list[str],
        typer.Argument(
            help="module:function that gives (model, first, second) or (model, first, second, "
            "align); or two reports that `samebits check` has written"
        ),
    ],
    out: Annotated[Path, typer.Option(help="directory of the explanation")] = Path("."),
    json: Annotated[bool, typer.Option("--json", help="print the explanation as JSON")] = False,
    html: Annotated[bool, typer.Option(help="write the HTML page")] = True,
) -> None:
    """Say why two runs that should agree do not: the operation, the cause, how much.

    Exit status: 0 they are equal, 1 they differ, 2 could not run.
    """
    from samebits.errors import SamebitsError
    from samebits.report import explanation, save_explanation
    from samebits.report.console import open_console

    console = open_console(stderr=json)
    try:
        found = _explained(target)
    except SamebitsError as error:
        console.print(f"samebits explain: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None
    files: list[Path] = []
    status, failure = 0 if found.verdict == "equal" else 1, ""
    try:
        files = save_explanation(found, out, page=html)
    except OSError as error:  # the answer is shown all the same
        status, failure = 2, f"samebits explain: cannot write to {out}: {error.strerror}"
    if json:
        print(found.to_json())
    else:
        explanation.show(found, console, files)
    if failure:
        console.print(failure, style="red", markup=False, highlight=False)
    raise typer.Exit(status)


def _explained(target: list[str]) -> Explanation:
    from samebits.check import explain as run
    from samebits.check.cause.versions import compare
    from samebits.check.targets import produced
    from samebits.errors import SettingError

    if len(target) == 2:
        return compare(*map(_report, target))
    if len(target) != 1 or ":" not in target[0]:
        raise SettingError("give module:function, or the JSON files of two reports")
    given: Any = produced(target[0])
    if not isinstance(given, tuple) or len(given) not in (3, 4):
        raise SettingError(
            f"{target[0]} must give (model, first, second) or (model, first, second, align)"
        )
    model, first, second = given[:3]
    return run(model, first, second, align=given[3] if len(given) == 4 else None)


def _report(path: str) -> Any:
    from samebits.check import Report
    from samebits.errors import SettingError
    from samebits.files import REPORT, it_is

    data = b""
    try:
        data = Path(path).read_bytes()
        return Report.from_json(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        reason = it_is(data, REPORT) or f": {error}"
        raise SettingError(f"{path} cannot be read as a report{reason}") from error
