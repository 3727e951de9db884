"""``samebits bench``: costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Costs against stock PyTorch, measured in turns.", no_args_is_help=True)


@app.command("cpu")
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
    from samebits.errors import SamebitsError
    from samebits.report import costs

    try:
        rows = bench.run(tuple(area) if area else bench.AREAS)
        costs.show(rows, as_json=json)
    except (ValueError, SamebitsError) as error:
        typer.echo(f"samebits bench: {error}", err=True)
        raise typer.Exit(2) from None


@app.command("gpu")
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


@app.command("ranks")
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


@app.command("receipts")
def bench_receipts(
    records: Annotated[int, typer.Option(min=1000, help="receipts to write and verify")] = 100_000,
) -> None:
    """What receipts cost: writing, verifying, auditing."""
    from samebits.bench.receipts import figures

    typer.echo(f"{'':<9} {'by the clock':>14} {'by processor':>14}")
    for f in figures(records):
        rates = f"{f.rate:>14,.0f} {f.cpu_rate:>14,.0f} {f.unit}/s"
        typer.echo(f"{f.name:<9} {rates}  {f.note}")


@app.command("guard")
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
