"""``samebits receipts``: look at a file of receipts, check it, write it out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Receipts of served requests: one hash-chained record each.", no_args_is_help=True
)
File = Annotated[Path, typer.Argument(metavar="FILE", help="a database, or its export")]
Which = Annotated[
    str, typer.Argument(metavar="WHICH", help="number of a record or name of a request")
]


@contextmanager
def errors(command: str) -> Iterator[None]:
    """Prints an error of samebits' own and ends with status 2."""
    from samebits.errors import SamebitsError

    try:
        yield
    except SamebitsError as error:
        typer.echo(f"samebits {command}: {error}", err=True)
        raise typer.Exit(2) from None


@app.command()
def verify(
    file: File,
    head: Annotated[
        list[str] | None,
        typer.Option(help="SEQUENCE:HASH kept elsewhere, which must lie on the chain; repeatable"),
    ] = None,
    key: Annotated[Path | None, typer.Option(help="the key that signs the file's heads")] = None,
    json: Annotated[bool, typer.Option("--json", help="print the verdict as JSON")] = False,
) -> None:
    """Check the chain: altered, missing, reordered and cut records.

    Exit status: 0 the chain is whole, 1 it is not, 2 the file could not be read.
    """
    import msgspec

    from samebits.guard.receipts import verify as run
    from samebits.guard.receipts.keys import Key

    with errors("receipts verify"):
        found = run(file, heads=head or (), key=None if key is None else Key.read(key))
    if json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        for fault in found.faults:
            typer.echo(f"{fault.kind}: {fault.text}")
        for note in found.notes:
            typer.echo(f"note: {note}")
        lost = f", {found.lost} could not be written at the time" if found.lost else ""
        faults = "1 fault" if len(found.faults) == 1 else f"{len(found.faults)} faults"
        state = "whole" if found.whole else f"NOT whole, {faults}"
        typer.echo(f"{found.records} records{lost}; the chain is {state}; head {found.head}")
    raise typer.Exit(0 if found.whole else 1)


@app.command()
def export(
    file: File,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="default: print")] = None,
) -> None:
    """Write a ledger as lines of JSON, which `verify` reads too."""
    from samebits.guard.receipts.reading import export as run
    from samebits.guard.receipts.reading import open_ledger

    with errors("receipts export"):
        source = open_ledger(file)
        try:
            if out is None:
                run(source, sys.stdout.buffer.write)
                return
            with out.open("wb") as target:
                count = run(source, target.write)
        except OSError as error:
            typer.echo(f"samebits receipts export: {out}: {error.strerror}", err=True)
            raise typer.Exit(2) from None
        finally:
            source.close()
    typer.echo(f"{count} records written to {out}")


@app.command()
def head(file: File) -> None:
    """Print SEQUENCE:HASH of the last record, to be kept where the file is not."""
    from samebits.guard.receipts.reading import open_ledger

    with errors("receipts head"):
        source = open_ledger(file)
        found = None
        for found in source.rows():  # noqa: B007  (an export has its head at its end)
            pass
        source.close()
    if found is None:
        typer.echo("samebits receipts head: there is no record yet", err=True)
        raise typer.Exit(1)
    typer.echo(f"{found[0]}:{found[1].hex()}")


@app.command()
def show(
    file: File,
    which: Which = "last",
) -> None:
    """Print a record, and what computed it."""
    import msgspec

    from samebits.guard.receipts.reading import find, identity_of, open_ledger
    from samebits.guard.receipts.record import Receipt, decode, encode

    with errors("receipts show"):
        source = open_ledger(file)
        sequence, hash, body = find(source, which)
        record = decode(body)
        value = {"sequence": sequence, "hash": hash.hex(), "record": msgspec.to_builtins(record)}
        if isinstance(record, Receipt):
            value["identity"] = msgspec.to_builtins(identity_of(source, record))
        source.close()
    typer.echo(msgspec.json.format(encode(value), indent=2).decode())
