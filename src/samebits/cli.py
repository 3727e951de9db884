"""The command ``samebits``. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from samebits import (
    cli_compare,
    cli_explain,
    cli_plan,
    cli_receipts,
    cli_replay,
    cli_reveal,
    cli_status,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_app = typer.Typer(
    help="Costs against stock PyTorch, measured in turns.", no_args_is_help=True
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


def check(
    target: Annotated[
        str, typer.Argument(help="tiny, smollm2, minilm, ops, or module:function (model, factory)")
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


@bench_app.command("cpu")
def bench_cpu(
    area: Annotated[
        list[str] | None,
        typer.Option(
            help="cpu_linear, cpu_attention, cpu_rows, cpu_exact, cpu_generation or cpu_overhead; "
            "may be repeated (default: all)"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print the rows as JSON")] = False,
) -> None:
    """Ratios of samebits to stock PyTorch on this processor."""
    from samebits import bench
    from samebits.report import costs

    try:
        rows = bench.run(tuple(area) if area else bench.AREAS)
        costs.show(rows, as_json=json)
    except ValueError as error:
        typer.echo(f"samebits bench: {error}", err=True)
        raise typer.Exit(2) from None


@bench_app.command("gpu")
def bench_gpu(
    area: Annotated[
        list[str] | None,
        typer.Option(
            help="linear, skinny, attention, rows, moe, layer, exact or portable; "
            "may be repeated (default: all)"
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a few points of each area")] = False,
    json: Annotated[Path | None, typer.Option(help="write all figures to this file")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="draw them to this file (.svg or .png; needs matplotlib)")
    ] = None,
) -> None:
    """Speed on this GPU against cuBLAS, cuDNN and torch, from replays of CUDA graphs."""
    from samebits.bench import gpu
    from samebits.bench.gpu_timing import ceilings
    from samebits.check.environment import gpu_environment
    from samebits.errors import SamebitsError
    from samebits.report import gpu_costs
    from samebits.report.console import open_console

    try:
        about = gpu_environment()
        if picture is not None:
            from samebits.report import gpu_picture

            gpu_picture.needs()
        wanted = gpu.select(tuple(area) if area else gpu.AREAS)
        lines = gpu_costs.show(gpu.run(wanted, quick=quick), ceilings(), open_console())
        if json is not None:
            gpu.save(json, lines, ceilings(), about)
        if picture is not None:
            gpu_picture.draw(lines, ceilings(), about, picture)
    except SamebitsError as error:
        typer.echo(f"samebits bench: {error}", err=True)
        raise typer.Exit(2) from None


@bench_app.command("ranks")
def bench_ranks(
    ranks: Annotated[
        int | None, typer.Option(help="how many, a GPU each (default: all that are visible)")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="every third size")] = False,
    json: Annotated[Path | None, typer.Option(help="write all figures to this file")] = None,
) -> None:
    """Partial sums joined, exact sums and row-parallel layers, against a stock all-reduce."""
    from samebits.bench import gpu, gpu_ranks
    from samebits.check.environment import gpu_environment
    from samebits.errors import SamebitsError
    from samebits.report import gpu_costs
    from samebits.report.console import open_console

    try:
        about = gpu_environment()
        ceilings = gpu_ranks.ceilings()
        lines = gpu_costs.show(gpu_ranks.lines(quick, ranks), ceilings, open_console())
        if json is not None:
            gpu.save(json, lines, ceilings, about)
    except SamebitsError as error:
        typer.echo(f"samebits bench: {error}", err=True)
        raise typer.Exit(2) from None


@bench_app.command("receipts")
def bench_receipts(
    records: Annotated[int, typer.Option(min=1000, help="receipts to write and verify")] = 100_000,
) -> None:
    """What receipts cost: writing, verifying, auditing."""
    from samebits.bench.receipts import figures

    typer.echo(f"{'':<9} {'by the clock':>14} {'by processor':>14}")
    for f in figures(records):
        rates = f"{f.rate:>14,.0f} {f.cpu_rate:>14,.0f} {f.unit}/s"
        typer.echo(f"{f.name:<9} {rates}  {f.note}")


@bench_app.command("guard")
def bench_guard(
    rounds: Annotated[int, typer.Option(min=4, help="comparisons of each setting")] = 400,
) -> None:
    """What the guard costs a decode step on a CPU. Needs transformers."""
    from samebits.bench.guard import costs
    from samebits.errors import SamebitsError

    typer.echo(f"{'guard':<17} {'cache':<13} {'ms a step':>9} {'calls':>8} {'samples':>8}")
    try:
        for c in costs(rounds):
            shares = f"{c.calls:>8.2%} {c.samples:>8.2%}"
            typer.echo(f"{c.setting:<17} {c.cache:<13} {1e3 * c.seconds:>9.3f} {shares}")
    except SamebitsError as error:
        typer.echo(f"samebits bench: {error}", err=True)
        raise typer.Exit(2) from None


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
    except SamebitsError as error:
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
app.command()(check)
app.command()(cli_explain.explain)
app.command()(cli_reveal.reveal)
app.command()(contract)
app.command()(env)
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)(run)
app.command()(cli_compare.record)
app.command()(cli_compare.compare)
app.command()(cli_replay.replay)
app.command()(cli_replay.audit)
app.command()(cli_status.status)
app.add_typer(cli_receipts.app, name="receipts")
app.add_typer(cli_plan.app, name="plan")
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="samebits")


if __name__ == "__main__":
    main()
