"""Prometheus metrics of this process. Counters are read when they are scraped: no call pays.

Needs ``prometheus-client`` (``pip install 'samebits[metrics]'``). In a process that has metrics of
its own, `register` adds ours to them.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from samebits import mode
from samebits.errors import SettingError
from samebits.guard.events import Event, counts, subscribe
from samebits.guard.receipts.recorder import active, totals

log = logging.getLogger("samebits.guard")
#: Ports that are tried, one for each process of a machine.
PORTS = 16


class Sample(NamedTuple):
    """One number: a family's name and help, its kind, labels, and value."""

    name: str
    help: str
    kind: str
    labels: dict[str, str]
    value: float


_events: Counter[tuple[str, str, str]] = Counter()
_lock = threading.Lock()


def samples() -> Iterator[Sample]:
    """All numbers, as they are now."""

    def total(name: str, help: str, value: float, **labels: str) -> Sample:
        return Sample(f"samebits_{name}", help, "counter", labels, value)

    def gauge(name: str, help: str, value: float) -> Sample:
        return Sample(f"samebits_{name}", help, "gauge", {}, value)

    yield gauge("switch_on", "1 while the switch is on", mode.is_on())
    yield total("calls", "Calls seen by the guard", counts.calls)
    checks = "Checks made, by kind"
    yield total("checks", checks, counts.path_checks, kind="path")
    yield total("checks", checks, counts.samples, kind="sample")
    yield total("checks", checks, counts.cache_checks, kind="cache")
    yield total("unchecked_calls", "Calls whose kernel writes no path", counts.unchecked)
    yield total("mismatches", "Calls that failed a check", counts.mismatches)
    yield total("replays", "Executions that decided a mismatch", counts.replays)
    yield total("guard_seconds", "Time spent on samples and replays", counts.seconds)
    with _lock:
        events = dict(_events)
    for (kind, op, verdict), number in events.items():
        labels = {"kind": kind, "op": op, "verdict": verdict}
        yield total("events", "What the guard caught", number, **labels)
    done, recorder = totals(), active()
    yield total("receipts_written", "Receipts in the file", done.written)
    yield total("receipts_lost", "Receipts that could not be written", done.lost)
    yield total("receipts_failures", "Writes that failed", done.failures)
    yield total("receipts_batches", "Transactions", done.batches)
    yield total("receipts_seconds", "Time spent on writing, on its own thread", done.seconds)
    waiting = recorder.waiting if recorder is not None else 0
    yield gauge("receipts_waiting", "Receipts that wait to be written", waiting)


def _count(event: Event) -> None:
    with _lock:
        _events[event.kind, event.op, event.verdict] += 1


class Collector:
    """Our families, for a registry of prometheus-client."""

    def collect(self) -> Iterator[Any]:
        """The families with their numbers."""
        core = _client().core
        kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        families: dict[str, Any] = {}
        for name, help, kind, labels, value in samples():
            if name not in families:
                families[name] = kinds[kind](name, help, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        yield from families.values()


_registered: list[Any] = []


def register(registry: Any = None) -> None:
    """Adds the metrics to a registry, by default prometheus-client's own. Idempotent.

    Raises:
        SettingError: prometheus-client is not installed.
    """
    client = _client()
    registry = client.REGISTRY if registry is None else registry
    if any(known is registry for known in _registered):
        return
    if not _registered:
        subscribe(_count)
    _registered.append(registry)
    registry.register(Collector())


def serve(port: int, address: str = "127.0.0.1") -> int:
    """Offers the metrics over HTTP, at `port` or the next free one of sixteen.

    Returns:
        The port.

    Raises:
        SettingError: there is no such port, none is free, or prometheus-client is not installed.
    """
    if not isinstance(port, int) or not 0 < port < 65536:
        raise SettingError(f"metrics: port={port!r} is no number from 1 to 65535")
    client = _client()
    registry = client.CollectorRegistry()
    register(registry)
    for candidate in range(port, min(port + PORTS, 65536)):
        if _listens(client, candidate, address, registry):
            extra = {"samebits": {"event": "metrics", "port": candidate}}
            log.info("metrics at http://%s:%d/metrics", address, candidate, extra=extra)
            return candidate
    raise SettingError(f"metrics: none of the {PORTS} ports from {port} on is free")


def _listens(client: Any, port: int, address: str, registry: Any) -> bool:
    try:
        client.start_http_server(port, address, registry)
    except OSError:
        return False
    return True


def _client() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError:
        raise SettingError(
            "metrics need the package prometheus-client: pip install 'samebits[metrics]'"
        ) from None
    return prometheus_client
