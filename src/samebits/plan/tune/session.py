"""Tuning many keys: in order, resumable, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from samebits.engines.schedule import BUCKETS, ScheduleKey
from samebits.errors import PlanError
from samebits.plan import document
from samebits.plan.builder import release
from samebits.plan.document import Entry, Plan
from samebits.plan.stack import Stack
from samebits.plan.tune.benches import Open
from samebits.plan.tune.search import Effort, Seeds, search


@dataclass(frozen=True)
class Step:
    """How far a session is: for a progress bar."""

    key: ScheduleKey
    done: int
    total: int


@dataclass
class Outcome:
    """What a session did.

    Attributes:
        plan: all entries, those of an earlier session too.
        failed: keys without an entry, and why.
        left: keys that were not reached within the time.
    """

    plan: Plan
    failed: dict[ScheduleKey, str] = field(default_factory=dict)
    left: list[ScheduleKey] = field(default_factory=list)

    @property
    def struck(self) -> list[Entry]:
        """Entries in which a schedule was struck out."""
        return [entry for entry in self.plan.entries if entry.struck]


def tune(
    keys: Sequence[ScheduleKey],
    open_bench: Open,
    stack: Stack,
    path: Path,
    *,
    effort: Effort | None = None,
    stock: Iterable[ScheduleKey] = (),
    seconds: float | None = None,
    again: bool = False,
    tell: Callable[[Step], None] = lambda step: None,
) -> Outcome:
    """Tunes `keys` and writes the plan to `path` after every one of them.

    Keys that the file already has, measured on the same stack, are kept as they are: a session that
    was interrupted goes on where it stopped.

    Args:
        open_bench: see `Open`.
        stack: what is measured on.
        stock: keys for which PyTorch's own operation is timed too.
        seconds: no key is begun later than this.
        again: measure keys that the file already has anew.
        tell: called at the beginning of each key and after each bucket.

    Raises:
        PlanError: the file is no plan, was made on another stack, or has no folder to be in.
    """
    entries = {entry.key: entry for entry in _earlier(path, stack)}
    todo = missing(keys, path, stack, again=again)
    timed, seeds, failed = set(stock), Seeds(), dict[ScheduleKey, str]()
    total, begin = len(todo) * len(BUCKETS), time.monotonic()
    for index, key in enumerate(todo):
        if seconds is not None and time.monotonic() - begin > seconds:
            return Outcome(_written(entries, stack, path), failed, todo[index:])

        def tell_bucket(done: int, key: ScheduleKey = key, before: int = index) -> None:
            tell(Step(key, before * len(BUCKETS) + done, total))

        tell_bucket(0)
        try:
            with open_bench(key) as bench:
                entries[key] = search(
                    bench,
                    key,
                    effort or Effort(),
                    seeds,
                    stock=key in timed,
                    tell=tell_bucket,
                )
        except Exception as error:  # one key does not cost the others
            failed[key] = f"{type(error).__name__}: {error}"
            continue
        _written(entries, stack, path)
    return Outcome(_written(entries, stack, path), failed)


def missing(
    keys: Iterable[ScheduleKey], path: Path, stack: Stack, *, again: bool = False
) -> list[ScheduleKey]:
    """What `tune` with these arguments would measure. Errors as `tune`."""
    kept = {entry.key for entry in _earlier(path, stack)}
    return [key for key in dict.fromkeys(keys) if again or key not in kept]


def _earlier(path: Path, stack: Stack) -> tuple[Entry, ...]:
    if not path.parent.is_dir():
        raise PlanError(f"{path}: there is no such folder")
    if not path.exists():
        return ()
    plan = document.read(path)
    if not plan.stack.times_hold_on(stack):
        raise PlanError(
            f"{path} was measured on another stack ({plan.stack}): give another file for this one"
        )
    return plan.entries


def _written(entries: dict[ScheduleKey, Entry], stack: Stack, path: Path) -> Plan:
    plan = Plan.of(entries.values(), stack, samebits=release(), tuned=date.today().isoformat())
    part = path.with_name(path.name + ".part")
    plan.save(part)
    part.replace(path)
    return plan
