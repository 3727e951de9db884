"""Plans in the terminal, and as JSON."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.engines.vendor.schedule import CublasLt
from samebits.engines.vendor.tiles import CLUSTERS, TILES
from samebits.plan.diff import Difference
from samebits.plan.document import Entry, Plan
from samebits.plan.tune import Outcome, Step
from samebits.plan.verify import Verdict
from samebits.report.console import lines, open_bar


def show(plan: Plan, console: Console, entries: Iterable[Entry] | None = None) -> None:
    """The plan's ids and stack, and a line for each key; or the buckets of some entries."""
    console.print(f"[bold]{escape(str(plan))}[/], schedules {plan.schedules_id}", highlight=False)
    stack = plan.stack
    parts = [stack.device, f"driver {stack.driver}" if stack.driver else "", f"torch {stack.torch}"]
    parts += [f"Triton {stack.triton}" if stack.triton else ""]
    parts += [f"cuBLASLt {stack.cublaslt}" if stack.cublaslt else ""]
    parts += [f"samebits {plan.samebits}" if plan.samebits else ""]
    parts += [f"measured {plan.tuned}" if plan.tuned else "not measured"]
    console.print(", ".join(part for part in parts if part), style="dim", highlight=False)
    console.print()
    if entries is None:
        console.print(_summary(plan))
        return
    for entry in entries:
        console.print(f"[bold]{escape(str(entry.key))}[/]", highlight=False)
        console.print(escape(entry.contract.strip()), style="dim", highlight=False)
        console.print(_buckets(entry, console))
        for struck in entry.struck:
            console.print(f"[red]struck out[/] {describe(struck.schedule)}: {escape(struck.why)}")


def to_json(plan: Plan, entries: Iterable[Entry] | None = None) -> str:
    """The ids, the stack, and of every entry (or of some) the key, the contract and the buckets."""
    chosen = plan.entries if entries is None else entries
    return json.dumps(
        {
            "id": plan.id, "schedules_id": plan.schedules_id, "samebits": plan.samebits,
            "tuned": plan.tuned, "stack": msgspec.to_builtins(plan.stack),
            "entries": [_as_data(entry) for entry in chosen],
        },
        indent=1,
    )  # fmt: skip


def _as_data(entry: Entry) -> dict[str, object]:
    """An entry; `rows` is the largest number of rows in a bucket, None for the open end."""
    stock = (*entry.stock_us, None) if entry.stock_us else (None,) * len(entry.choices)
    buckets = zip((*BUCKETS, None), entry.choices, stock, strict=False)
    return {
        "key": msgspec.to_builtins(entry.key),
        "contract": entry.contract,
        "buckets": [{"rows": m, "stock_us": us, **msgspec.to_builtins(c)} for m, c, us in buckets],
        "struck": msgspec.to_builtins(entry.struck),
    }


#: Fields that are said in short, or not at all.
_SHORT = {"warps": "w", "num_warps": "w", "stages": "s", "num_stages": "s"}
_TILE = ("block_m", "block_n", "block_k")


def describe(schedule: Schedule | None) -> str:
    """A schedule in a few words: kind, tile, and what else is not the default."""
    if schedule is None:
        return ""
    if isinstance(schedule, CublasLt):
        return _vendor(schedule)
    raw = {"kind": _kind(schedule), **msgspec.structs.asdict(schedule)}
    defaults = {field.name: field.default for field in msgspec.structs.fields(type(schedule))}
    tile = "x".join(str(raw.pop(name)) for name in _TILE if name in raw)
    words = [str(raw.pop("kind")).removeprefix("triton."), tile]
    for name, value in raw.items():
        if name in _SHORT:
            words.append(f"{_SHORT[name]}{value}")
        elif value is True:
            words.append(name)
        elif value != defaults.get(name):
            words.append(f"{name} {value}")
    return " ".join(word for word in words if word)


def _vendor(schedule: CublasLt) -> str:
    """The library's numbers in the library's order of axes: n first."""
    rows, cols = TILES.get(schedule.tile, (0, 0))
    across, down = CLUSTERS.get(schedule.cluster, (0, 0))
    words = f"{schedule.library} {schedule.algorithm} {rows}x{cols} cluster {across}x{down}"
    return words + (f" option {schedule.option}" if schedule.option else "")


#: Columns that are folded where a terminal is too narrow; all others keep their width.
_TEXTS = ("tree", "schedules", "schedule", "second", "own")


def _kind(schedule: Schedule) -> str:
    return str(type(schedule).__struct_config__.tag)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        right = name in ("n", "k", "M", "µs", "stock", "ratio", "worst")
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=name not in _TEXTS,
            overflow="fold",
        )
    return table


def _summary(plan: Plan) -> Table:
    table = _table("op", "n", "k", "dtype", "tree", "schedules", "ratio", "worst")
    for entry in sorted(plan.entries, key=lambda e: (e.key.op, e.key.k or 0, e.key.n or 0)):
        key = entry.key
        kinds = Counter(_kind(c.schedule) for c in entry.choices)
        size = str(key.n or key.head_dim or ""), str(key.k or key.value_dim or "")
        found = ratios(entry)
        table.add_row(
            _family(key), *size, key.operands, key.tree,
            ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "[dim]none[/]",
            _ratio(geometric_mean(found)) if found else "", _ratio(min(found)) if found else "",
        )  # fmt: skip
    return table


def _family(key: ScheduleKey) -> str:
    """The operation with what else tells keys of one size apart."""
    more = [f"x {key.experts}" if key.experts is not None else ""]
    more += [f"group {key.group}" if key.group is not None else ""]
    return " ".join(filter(None, (key.op, *more)))


def _buckets(entry: Entry, console: Console) -> Table:
    """A line for each bucket; where that is too wide, what came second has a line of its own."""
    table = _table("M", "schedule", "µs", "stock", "ratio", "second", "µs", "own", "µs")
    narrow = _table("M", "schedule", "µs", "stock", "ratio")
    found = ratios(entry)
    for bucket, choice in enumerate(entry.choices):
        open_end = bucket == len(BUCKETS)
        first = (
            f"> {BUCKETS[-1]}" if open_end else str(BUCKETS[bucket]),
            describe(choice.schedule), _us(choice.us),
            _us(entry.stock_us[bucket]) if found and not open_end else "",
            _ratio(found[bucket]) if found and not open_end else "",
        )  # fmt: skip
        second = describe(choice.runner_up), _us(choice.runner_up_us)
        own = describe(choice.own), _us(choice.own_us)
        table.add_row(*first, *second, *own)
        narrow.add_row(*first)
        for label, (text, us) in (("second", second), ("own", own)):
            if text:
                narrow.add_row(f"[dim]{label}[/]", f"[dim]{text}[/]", f"[dim]{us}[/]")
    unbounded = console.options.update(max_width=sys.maxsize)
    fits = console.measure(table, options=unbounded).maximum <= console.width
    return table if fits else narrow


def ratios(entry: Entry) -> list[float]:
    """How many times faster than PyTorch's own operation, by bucket; empty if not measured."""
    pairs = zip(entry.stock_us, entry.choices, strict=False)
    return [stock / choice.us for stock, choice in pairs if choice.us]


def geometric_mean(numbers: list[float]) -> float:
    """Of positive numbers."""
    return math.exp(math.fsum(map(math.log, numbers)) / len(numbers))


def _us(us: float | None) -> str:
    return "" if us is None else f"{us:.1f}"


def _ratio(ratio: float) -> str:
    colour = "green" if ratio >= 1 else "yellow" if ratio >= 0.9 else "red"
    return f"[{colour}]{ratio:.2f}x[/]"


def verdicts(found: Iterable[Verdict], console: Console) -> bool:
    """A line for every key as it comes; whether all hold."""
    holds = True
    for verdict in found:
        mark = "[green]✓ same bits[/]" if verdict.holds else "[red]✗[/]"
        if verdict.compared is None:
            mark = "[yellow]not compared[/]"
        count = "" if verdict.compared is None else f"{verdict.compared} schedules"
        console.print(f"{mark} {escape(str(verdict.key))} [dim]{count}[/]", highlight=False)
        for struck in verdict.struck:
            console.print(f"  [red]struck out[/] {describe(struck.schedule)}: {escape(struck.why)}")
        for schedule in verdict.unsuitable:
            console.print(f"  [red]does not run here[/] {describe(schedule)}")
        holds &= verdict.holds
    return holds


def difference(found: Difference, console: Console) -> None:
    """What changed, bits first."""
    if not found.changes:
        console.print("the same contracts and the same schedules")
    elif not found.common:
        console.print("[yellow]no key in common[/]: there are no bits to compare")
    elif not found.bits:
        console.print("[green]the same bits[/] for every key that both plans have")
    else:
        console.print("[red]other bits[/]")
    for kind in ("bits", "removed", "added", "speed"):
        for change in found.changes:
            if change.kind != kind:
                continue
            colour = "red" if kind == "bits" else "dim"
            console.print(f"[{colour}]{kind:<8}[/] {escape(str(change.key))}", highlight=False)
            if change.contracts:
                for side, text in zip(("-", "+"), change.contracts, strict=True):
                    for line in text.splitlines():
                        console.print(f"    {side} {escape(line)}", style="dim", highlight=False)
            for m, before, after in change.buckets:
                rows = f"> {BUCKETS[-1]}" if m is None else f"≤ {m}"
                console.print(
                    f"    M {rows}: {describe(before)} → {describe(after)}", highlight=False
                )
    for line in found.stack:
        console.print(f"[dim]stack    {escape(line)}[/]", highlight=False)


@contextmanager
def progress(console: Console) -> Iterator[Callable[[Step], None]]:
    """A progress bar for the length of the block; gives the callback for `tune`.

    Where there is no terminal, standard error gets a line a key.
    """
    place = open_bar(console)
    if place is None:
        line = lines("tune")
        yield lambda step: line(step.done, step.total, str(step.key))
        return
    columns = (
        BarColumn(bar_width=32), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=place, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def tell(step: Step) -> None:
            bar.update(task, total=step.total, completed=step.done, description=str(step.key))

        yield tell


def outcome(found: Outcome, console: Console) -> None:
    """What a tuning session did."""
    plan = found.plan
    console.print(f"[bold]{escape(str(plan))}[/], schedules {plan.schedules_id}", highlight=False)
    measured = [ratio for entry in plan.entries for ratio in ratios(entry)]
    if measured:
        console.print(
            f"against stock PyTorch: geometric mean {_ratio(geometric_mean(measured))}, worst "
            f"{_ratio(min(measured))} of {len(measured)}",
            highlight=False,
        )
    for entry in found.struck:
        for struck in entry.struck:
            console.print(
                f"[red]struck out[/] {escape(str(entry.key))}: {describe(struck.schedule)}: "
                f"{escape(struck.why)}",
                highlight=False,
            )
    for key, why in found.failed.items():
        console.print(f"[red]failed[/] {escape(str(key))}: {escape(why)}", highlight=False)
    if found.left:
        console.print(f"[yellow]{len(found.left)} keys not reached: run it again to go on[/]")
