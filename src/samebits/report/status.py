"""``samebits status``: the metrics of a serving process, read over HTTP, as a table."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from samebits.errors import SettingError
from samebits.guard.alarms import ALARMS

_LINE = re.compile(r"^(samebits_\w+)(\{[^}]*\})? (\S+)")


@dataclass(frozen=True)
class Reading:
    """One reading: numbers by name with labels, and when it was taken."""

    values: Mapping[str, float]
    time: float

    @property
    def sums(self) -> dict[str, float]:
        """Sums over all labels."""
        found: dict[str, float] = {}
        for name, value in self.values.items():
            bare = name.partition("{")[0]
            found[bare] = found.get(bare, 0.0) + value
        return found


def parse(text: str) -> dict[str, float]:
    """The numbers of samebits in Prometheus' text format; creation times are left out."""
    found = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and not match[1].endswith("_created"):
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


def read(url: str, timeout: float = 5.0) -> Reading:
    """Reads the metrics of a process.

    Raises:
        SettingError: nobody answers, or what answers has no metrics of samebits.
    """
    if not url.startswith(("http://", "https://")):
        raise SettingError(f"{url}: give an address that starts with http:// or https://")
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            values = parse(answer.read().decode())
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise SettingError(
            f"{url}: {reason}; start the server with SAMEBITS_METRICS=PORT, and give its address"
        ) from None
    if not values:
        raise SettingError(f"{url}: there are no metrics of samebits")
    return Reading(values, time.monotonic())


def table(before: Reading | None, now: Reading) -> Group:
    """The numbers, how fast they grow, and the alarms that ring."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("")
    shown.add_column("now", justify="right")
    if before is not None:
        shown.add_column("a second", justify="right")
    for name, value in now.values.items():
        rates = []
        if before is not None and "_total" in name:
            grown = value - before.values.get(name, 0.0)
            rates = [f"{grown / max(now.time - before.time, 1e-9):,.1f}"]
        label = name.removeprefix("samebits_").replace("_total", "").replace("_", " ", 3)
        shown.add_row(label, f"{value:,.3f}".rstrip("0").rstrip("."), *rates)
    past = before.sums if before is not None else {}
    ringing = [alarm for alarm in ALARMS if alarm.rings(past, now.sums)]
    lines = [
        Text(f"{alarm.name}: {alarm.meaning}", style="bold red")
        for alarm in ringing
    ]  # fmt: skip
    return Group(shown, *(lines or [Text("no alarms", style="green")]))


def show(url: str, console: Console) -> bool:
    """Prints one reading, counted from the process' start; whether no alarm rings."""
    now = read(url)
    console.print(table(None, now))
    return not any(alarm.rings({}, now.sums) for alarm in ALARMS)


def watch(url: str, console: Console, interval: float, rounds: int | None = None) -> None:
    """Shows readings until it is interrupted, or `rounds` were shown."""
    first = before = read(url)
    with Live(table(None, first), console=console, auto_refresh=False) as live:
        while rounds is None or rounds > 1:
            time.sleep(interval)
            now = read(url)
            live.update(table(before, now), refresh=True)
            before = now
            rounds = None if rounds is None else rounds - 1
