"""What an operator should be woken for, as data: for Prometheus, `samebits status`, and docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Alarm:
    """One rule over metrics.

    Attributes:
        name: in Prometheus.
        metric: its name as it is scraped.
        rate: whether its growth counts, or its value.
        above: from which on it is an alarm.
        minutes: window of the growth, or how long the value must last.
        severity: "page" or "ticket".
        meaning, remedy: what it says, and what to do.
    """

    name: str
    metric: str
    rate: bool
    above: float
    minutes: int
    severity: str
    meaning: str
    remedy: str

    @property
    def expression(self) -> str:
        """The rule in Prometheus' language."""
        if self.rate:
            return f"increase({self.metric}[{self.minutes}m]) > {self.above:g}"
        return f"{self.metric} > {self.above:g}"

    def rings(self, before: Mapping[str, float], now: Mapping[str, float]) -> bool:
        """Whether it would ring between two readings (sums over all labels)."""
        value = now.get(self.metric, 0.0)
        return (value - before.get(self.metric, 0.0) if self.rate else value) > self.above


ALARMS = (
    Alarm(
        "SamebitsMismatch", "samebits_mismatches_total", True, 0, 10, "page",
        "A result had other bits than its contract; the guard replaced it.",
        "Look at the event in the log or the ledger (`samebits receipts show`): its device, "
        "schedule and verdict. One transient event: watch the device. A second on one device, or "
        "a verdict of schedule: take the device or the release out of service.",
    ),
    Alarm(
        "SamebitsReceiptsLost", "samebits_receipts_lost_total", True, 0, 10, "page",
        "Requests were served without a receipt (on_error=\"continue\", and the backlog is full).",
        "Make room on the disk, or end what locks the file. A gap record will say how many.",
    ),
    Alarm(
        "SamebitsReceiptsFailing", "samebits_receipts_failures_total", True, 0, 10, "page",
        "The file of receipts cannot be written to. With on_error=\"stop\" serving has ended.",
        "The log says why: disk full, file locked, read-only. Nothing is lost yet while receipts "
        "wait.",
    ),
    Alarm(
        "SamebitsReceiptsWaiting", "samebits_receipts_waiting", False, 10_000, 5, "ticket",
        "Receipts come faster than they are written.",
        "Put the file on a faster disk, or use durability=\"process\".",
    ),
    Alarm(
        "SamebitsUnchecked", "samebits_unchecked_calls_total", True, 0, 60, "ticket",
        "In path mode calls ran on kernels that write no path.",
        "Sampling (guard=\"path,sample:0.01\") still looks at them; or load a plan without a "
        "vendor's kernels.",
    ),
)  # fmt: skip


def rules() -> str:
    """The alarms as a file of Prometheus' alerting rules (YAML)."""
    lines = ["groups:", "- name: samebits", "  rules:"]
    for alarm in ALARMS:
        lines += [f"  - alert: {alarm.name}", f"    expr: {alarm.expression}"]
        if not alarm.rate:
            lines.append(f"    for: {alarm.minutes}m")
        lines += [
            f"    labels: {{severity: {alarm.severity}}}",
            "    annotations:",
            f"      summary: {_quoted(alarm.meaning)}",
            f"      description: {_quoted(alarm.remedy)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A YAML string in single quotes."""
    return "'" + text.replace("'", "''") + "'"
