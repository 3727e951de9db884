"""The command ``samebits plan``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.engines.schedule import ScheduleKey
from samebits.errors import PlanError, SamebitsError

if TYPE_CHECKING:
    from samebits.plan.document import Plan

app = typer.Typer(
    help="Contracts and schedules of a model's shapes: build, tune, look into, verify, compare.",
    no_args_is_help=True,
)

Models = Annotated[list[str] | None, typer.Option("--model", help="a known model; may be repeated")]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="n,k of a weight; may be repeated")
]
Sizes = Annotated[str, typer.Option("--tp", help="tensor-parallel sizes, e.g. 1,2,4,8")]
Dtype = Annotated[str, typer.Option(help="storage type of the operands")]
Device = Annotated[str, typer.Option(help="device class: sm_90 (h100, h200), cpu, portable, ...")]
Json = Annotated[bool, typer.Option("--json", help="print the plan as JSON")]
Out = Annotated[Path, typer.Option("--out", "-o", help="the file to write")]
PlanFile = Annotated[
    Path | None, typer.Argument(help="a plan file; without one: the tables of this release")
]


@contextmanager
def _errors(command: str) -> Iterator[None]:
    """Errors of samebits and of files as one line, and exit status 2."""
    try:
        yield
    except (SamebitsError, OSError) as error:
        typer.echo(f"samebits plan {command}: {error}", err=True)
        raise typer.Exit(2) from None


@app.command()
def build(
    out: Out,
    model: Models = None,
    shape: Shapes = None,
    tp: Sizes = "1",
    dtype: Dtype = "bf16",
    device: Device = "sm_90",
    json: Json = False,
) -> None:
    """Write a plan without measuring: contracts, and the schedules known to this release."""
    from samebits.plan import stack
    from samebits.plan.builder import device_of, entries_of, release
    from samebits.plan.document import Plan
    from samebits.report import plan as report
    from samebits.report.console import open_console

    with _errors("build"):
        kind = device_of(device)
        keys = _keys(model, shape, tp, dtype, kind)
        made = Plan.of(entries_of(keys), stack.here(kind), samebits=release())
        made.save(out)
        if json:
            print(report.to_json(made))
        else:
            report.show(made, open_console())


@app.command()
def show(
    plan: PlanFile = None,
    shape: Shapes = None,
    device: Device = "sm_90",
    json: Json = False,
) -> None:
    """Show what a plan holds; with --shape, which schedule runs in which bucket of rows."""
    from samebits.report import plan as report
    from samebits.report.console import open_console

    with _errors("show"):
        found = _plan(plan, device)
        wanted = {_shape(text) for text in shape or ()}
        entries = [e for e in found.entries if (e.key.n, e.key.k) in wanted] if wanted else None
        if entries == []:
            raise PlanError(f"{found} holds no weight of {', '.join(shape or ())}")
        if json:
            print(report.to_json(found, entries))
        else:
            report.show(found, open_console(), entries)


@app.command()
def verify(plan: PlanFile = None, device: Device = "sm_90") -> None:
    """Compute every schedule on this machine and compare its bits with its contract's.

    Exit status: 0 all have the contract's bits, 1 one has not or does not run, 2 could not run.
    """
    from samebits.plan import verify as checks
    from samebits.report import plan as report
    from samebits.report.console import open_console

    with _errors("verify"):
        found = _plan(plan, device)
        if not any(entry.choices for entry in found.entries):
            raise PlanError(f"{found} holds no schedules: there is nothing to compare")
        holds = report.verdicts(checks.verify(found), open_console())
    raise typer.Exit(0 if holds else 1)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="a plan file")],
    after: Annotated[Path, typer.Argument(help="another one")],
) -> None:
    """Show what changed between two plans.

    Exit status: 0 the same bits for all keys that both have, 1 other bits, 2 could not be compared,
    also because they have no key in common.
    """
    from samebits.plan.diff import diff as compare
    from samebits.plan.document import read
    from samebits.report import plan as report
    from samebits.report.console import open_console

    with _errors("diff"):
        found = compare(read(before), read(after))
    report.difference(found, open_console())
    if found.changes and not found.common:
        raise typer.Exit(2)
    raise typer.Exit(1 if found.bits else 0)


@app.command()
def tune(
    out: Out,
    model: Models = None,
    shape: Shapes = None,
    every: Annotated[bool, typer.Option("--all", help="all known models")] = False,
    tp: Sizes = "1",
    dtype: Dtype = "bf16",
    device: Device = "sm_90",
    seconds: Annotated[
        float | None, typer.Option(help="begin no shape later than this; run again to go on")
    ] = None,
    again: Annotated[bool, typer.Option(help="measure what the file has anew")] = False,
    stock: Annotated[bool, typer.Option(help="time PyTorch's own operation too")] = False,
    workers: Annotated[
        int, typer.Option(help="processes that compile kernels beforehand; 0 for none")
    ] = 8,
) -> None:
    """Measure the fastest schedule of every bucket of rows on this machine's GPU.

    Schedules that differ from their contract in one bit are struck out. The file is written after
    every shape; the same command goes on where an earlier one stopped.
    """
    from samebits.plan import stack
    from samebits.plan.builder import device_of
    from samebits.plan.models import MODELS
    from samebits.plan.tune import missing
    from samebits.plan.tune import tune as run
    from samebits.plan.tune.benches import benches, measurable
    from samebits.plan.tune.precompile import precompile
    from samebits.report import plan as report
    from samebits.report.console import open_console

    console = open_console()
    with _errors("tune"):
        kind = device_of(device)
        wanted = _keys(list(MODELS) if every else model, shape, tp, dtype, kind)
        keys = [key for key in wanted if measurable(key)]
        open_bench, here = benches(kind), stack.here(kind)
        if workers:
            precompile(missing(keys, out, here, again=again), kind, workers)
        with report.progress(console) as tell:
            found = run(
                keys,
                open_bench,
                here,
                out,
                stock=keys if stock else (),
                seconds=seconds,
                again=again,
                tell=tell,
            )
    report.outcome(found, console)
    if len(keys) < len(wanted):
        console.print(f"{len(wanted) - len(keys)} keys have no bench and keep their defaults")
    raise typer.Exit(1 if found.failed or found.struck else 0)


def _plan(path: Path | None, device: str) -> Plan:
    """The plan in a file, or the tables of this release for a device class."""
    from samebits.plan.builder import device_of
    from samebits.plan.document import read
    from samebits.plan.tables import committed

    return committed(device_of(device)) if path is None else read(path)


def _keys(
    models: list[str] | None, shapes: list[str] | None, tp: str, dtype: str, device: str
) -> list[ScheduleKey]:
    """The keys of models and shapes, each once.

    Raises:
        PlanError: none is given, or one is not understood.
    """
    from samebits.plan.builder import keys_of

    sizes = [_number(size, "--tp") for size in tp.split(",")]
    found: dict[ScheduleKey, None] = {}
    for what in (*(models or ()), *([[_shape(s) for s in shapes]] if shapes else ())):
        found |= dict.fromkeys(keys_of(what, device=device, dtype=dtype, tp=sizes))
    if not found and shapes:
        raise PlanError(f"--tp {tp}: a bare shape is not cut; give --tp 1, or the shape of a part")
    if not found:
        raise PlanError("name something: --model llama-3-8b, --shape 4096,14336")
    return list(found)


def _shape(text: str) -> tuple[int, int]:
    parts = text.lower().replace("x", ",").split(",")
    if len(parts) != 2 or not all(parts):
        raise PlanError(f"--shape {text!r} is not understood: use n,k, e.g. 4096,14336")
    return _number(parts[0], "--shape"), _number(parts[1], "--shape")


def _number(text: str, option: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise PlanError(f"{option}: {text!r} is no positive number")
    return int(text)
