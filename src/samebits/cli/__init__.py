"""The command ``samebits``. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli import (
    bench,
    check,
    compare,
    explain,
    plan,
    receipts,
    replay,
    reveal,
    status,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from samebits import __version__

        typer.echo(f"samebits {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Same request, same bits, whatever else is in the batch."""


def env() -> None:
    """Versions, processor, and what the switch covers here."""
    import samebits
    from samebits.check.environment import environment

    for key, value in environment().items():
        print(f"{key:<12} {value}")
    print(samebits.status())


def contract(
    op: Annotated[str, typer.Argument(help="linear, attention, softmax, sum, rms_norm, ...")],
    n: Annotated[int | None, typer.Option(help="output features")] = None,
    k: Annotated[int | None, typer.Option(help="length of the reduction axis")] = None,
    head_dim: Annotated[int | None, typer.Option(help="D of attention")] = None,
    dtype: Annotated[str, typer.Option(help="fp32, bf16, fp16, tf32, e4m3")] = "bf16",
    device: Annotated[str, typer.Option(help="cpu, sm_90, portable, exact, ...")] = "cpu",
    svg: Annotated[Path | None, typer.Option(help="write the drawing to this file")] = None,
) -> None:
    """Show what decides the bits of an operation: its contract and its reduction tree."""
    from samebits.errors import SamebitsError
    from samebits.plan import contract_of

    try:
        found = contract_of(op, n=n, k=k, head_dim=head_dim, dtype=dtype, device=device)
        print(found.render("text", length=k))
        if svg is not None:
            svg.write_text(found.render("svg", length=k), encoding="utf-8")
            print(f"written {svg}")
    except (SamebitsError, OSError) as error:
        typer.echo(f"samebits contract: {error}", err=True)
        raise typer.Exit(2) from None


def run(context: typer.Context) -> None:
    """Run COMMAND with the switch on: samebits run -- python script.py"""
    from samebits import launch

    if not context.args or context.args[0] in ("-h", "--help"):
        typer.echo("usage: samebits run -- COMMAND [ARGUMENTS...]", err=not context.args)
        raise typer.Exit(0 if context.args else 2)
    try:
        launch.replace_process(context.args)
    except OSError as error:
        typer.echo(f"samebits run: {context.args[0]}: {error.strerror}", err=True)
        raise typer.Exit(2) from None


# In the order of the help: the product first, then what records and servers need.
app.command()(check.check)
app.command()(explain.explain)
app.command()(reveal.reveal)
app.command()(contract)
app.command()(env)
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)(run)
app.command()(compare.record)
app.command()(compare.compare)
app.command()(replay.replay)
app.command()(replay.audit)
app.command()(status.status)
app.add_typer(receipts.app, name="receipts")
app.add_typer(plan.app, name="plan")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="samebits")
