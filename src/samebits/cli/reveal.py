"""The command ``samebits reveal``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from samebits.reveal import Request


def rows_of(text: str) -> list[int]:
    """The numbers that "8", "1,2,8", "1:512" (both ends) or "1:512:16" stand for.

    Raises:
        RevealError: the text is none of these.
    """
    from samebits.errors import RevealError

    found: list[int] = []
    for part in text.split(","):
        try:
            first, *rest = (int(number) for number in part.split(":", 2))
            last, step = (*rest, first, 1)[:2] if not rest else (*rest, 1)[:2]
            numbers = range(first, last + 1, step)
        except ValueError:
            raise RevealError(f"--m {text}: use 8, 1,2,8 or 1:512") from None
        found += numbers
    if not found or min(found) < 1 or len(found) != len(set(found)):
        raise RevealError(f"--m {text}: use different numbers of rows from 1 on")
    return found


def reveal(
    target: Annotated[
        str, typer.Argument(help="linear, mm, bmm, sum, softmax, pv, qk, ... or module:function")
    ],
    k: Annotated[int, typer.Option(help="addends of a sum: length of the reduced axis")],
    n: Annotated[int | None, typer.Option(help="columns: output features")] = None,
    m: Annotated[str | None, typer.Option(help="numbers of rows: 8, 1,2,8 or 1:512")] = None,
    dtype: Annotated[str, typer.Option(help="fp32, tf32, bf16, fp16, e4m3, ...")] = "fp32",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    batch: Annotated[int, typer.Option(help="matrices of bmm, heads of pv and qk")] = 1,
    row: Annotated[int, typer.Option(help="row of the results, where --m is one number")] = 0,
    op: Annotated[
        str | None, typer.Option(help="how module:function is called: like sum, linear, ...")
    ] = None,
    samebits: Annotated[
        bool, typer.Option("--samebits", help="turn the switch on: trees of samebits, not of stock")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print what was found as JSON")] = False,
    svg: Annotated[
        Path | None, typer.Option(help="draw the tree to this file; one file a tree, -2, -3, ...")
    ] = None,
) -> None:
    """Show the reduction tree of an operation, and which numbers of rows share it.

    Exit status: 0 one tree, 1 several (rows or numbers of rows differ), 2 not revealed.
    """
    from samebits import mode
    from samebits.errors import RevealError, SamebitsError
    from samebits.report import trees
    from samebits.report.console import open_console

    console = open_console(stderr=json)
    try:
        if svg is not None and not svg.parent.is_dir():
            raise RevealError(f"--svg {svg}: there is no folder {svg.parent}")
        request = _request(target, k, n, dtype, device, batch, op)
        numbers = [None] if m is None else rows_of(m)
        with mode.deterministic() if samebits else nullcontext():
            kinds = trees.found(request, numbers, row, console)
        files = trees.draw(kinds, svg) if svg is not None else []
    except SamebitsError as error:
        console.print(f"samebits reveal: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None
    if json:
        print(trees.to_json(kinds))
    else:
        trees.show(kinds, console, files)
    raise typer.Exit(1 if len(kinds) > 1 else 0)


def _request(
    target: str, k: int, n: int | None, dtype: str, device: str, batch: int, op: str | None
) -> Request:
    from samebits.check.targets import named
    from samebits.errors import RevealError
    from samebits.reveal import OPERATIONS, Request

    if ":" in target:
        found = named(target)
        if not callable(found):
            raise RevealError(f"{target} is no function")
        return Request(op or "sum", k, None, n, dtype, device, batch, found)
    if op is not None:
        raise RevealError(f"--op says how module:function is called; {target} has a name")
    if target not in OPERATIONS:
        raise RevealError(
            f"{target!r} is not known: use module:function or one of {', '.join(OPERATIONS)}"
        )
    return Request(target, k, None, n, dtype, device, batch)
