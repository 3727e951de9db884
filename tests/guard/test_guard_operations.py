"""Metrics, logs, alarms, and what the environment starts."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import receipt_samples as samples
from rich.console import Console
from typer.testing import CliRunner

import samebits
from samebits import cli, settings
from samebits.engines.cpu import _cpu
from samebits.errors import SettingError
from samebits.guard import Device, Event, counts, logs, metrics, publish
from samebits.guard.alarms import ALARMS, rules
from samebits.guard.receipts import recorder, verify
from samebits.report import status

needs_client = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("prometheus_client") is None,
    reason="prometheus-client is not installed",
)


def event(op: str = "linear") -> Event:
    return Event(
        time=1.7e9, kind="bytes", op=op, contract="abc", plan="", schedule="s", site=None,
        device=Device("cpu", "a processor"), reference="r", verdict="transient",
    )  # fmt: skip


def value(name: str, **labels: str) -> float:
    return sum(s.value for s in metrics.samples() if s.name == name and s.labels == labels)


def test_numbers_follow_what_happens(tmp_path: Path) -> None:
    written, mismatches = value("samebits_receipts_written"), value("samebits_mismatches")
    with samebits.receipts(tmp_path / "r") as kept:
        samples.fill(kept, 7)
        kept.flush()
        assert value("samebits_receipts_written") == written + 7
    assert value("samebits_receipts_written") == written + 7  # a closed recorder's count too
    counts.mismatches += 1
    assert value("samebits_mismatches") == mismatches + 1
    counts.mismatches -= 1
    with samebits.deterministic():
        assert value("samebits_switch_on") == 1
    assert value("samebits_switch_on") == 0


@pytest.fixture
def nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What faults of other tests have left in this process' counters does not count."""
    for name in counts.__struct_fields__:
        monkeypatch.setattr(counts, name, type(getattr(counts, name))())
    monkeypatch.setattr(_cpu, "guard_counts", lambda: [0, 0, 0])
    monkeypatch.setattr(recorder, "_closed", recorder.Counters())


@needs_client
def test_metrics_over_http(tmp_path: Path, nothing_yet: None) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        port = metrics.serve(first)
        assert first < port < first + metrics.PORTS
    url = f"http://127.0.0.1:{port}/metrics"
    before = status.read(url)
    publish(event())
    with samebits.receipts(tmp_path / "r") as kept:
        samples.fill(kept, 3)
    now = status.read(url)
    name = 'samebits_events_total{kind="bytes",op="linear",verdict="transient"}'
    assert now.values[name] >= 1
    assert now.sums["samebits_receipts_written_total"] - before.sums[
        "samebits_receipts_written_total"
    ] >= 3  # fmt: skip
    assert {a.metric for a in ALARMS} <= set(now.sums)
    done = CliRunner().invoke(cli.app, ["status", "--url", url])
    assert done.exit_code == 0 and "receipts written" in done.stdout, done.output
    assert "no alarms" in done.stdout
    counts.mismatches += 1
    rings = CliRunner().invoke(cli.app, ["status", "--url", url])
    counts.mismatches -= 1
    assert rings.exit_code == 1 and "SamebitsMismatch: A result had other bits" in rings.stdout
    out = io.StringIO()
    status.watch(url, Console(file=out), 0.01, rounds=3)
    assert "receipts written" in out.getvalue()


@needs_client
def test_metrics_join_those_of_the_process() -> None:
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()
    metrics.register(registry)
    metrics.register(registry)
    text = prometheus_client.generate_latest(registry).decode()
    assert text.count("# TYPE samebits_calls_total counter") == 1
    assert status.parse(text)["samebits_switch_on"] == 0


@pytest.mark.parametrize("port", [0, -1, 65536, "9464", None])
def test_a_port_that_is_none_is_refused(port: Any) -> None:
    """0 would be any free one, which nobody is told."""
    with pytest.raises(SettingError, match="port="):
        metrics.serve(port)


def test_without_the_client_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SettingError, match=r"pip install 'samebits\[metrics\]'"):
        metrics.serve(9464)


def test_who_does_not_answer(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:9/metrics", "file:///etc/hosts"):
        done = CliRunner().invoke(cli.app, ["status", "--url", url])
        assert done.exit_code == 2 and "samebits status:" in done.stderr


def test_every_alarm_rings_for_its_metric() -> None:
    for alarm in ALARMS:
        calm, loud = {alarm.metric: alarm.above}, {alarm.metric: 2 * alarm.above + 1}
        assert alarm.rings({}, loud) and not alarm.rings(calm, calm)
        assert alarm.expression in rules() and alarm.name in rules()
    written = CliRunner().invoke(cli.app, ["status", "--rules"]).stdout
    assert written == rules() and re.search(r"^ *- alert: SamebitsMismatch$", written, re.M)


def test_log_lines_are_json(tmp_path: Path) -> None:
    path = tmp_path / "log"
    handler = logs.write_to(str(path))
    try:
        publish(event("attention"))
        try:
            raise ValueError("a reason")
        except ValueError:
            logging.getLogger("samebits.guard").exception("went wrong")
    finally:
        logging.getLogger("samebits").removeHandler(handler)
        handler.close()
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["level"] == "ERROR" and first["samebits"]["op"] == "attention"
    assert first["process"] == os.getpid() and first["time"].endswith("+00:00")
    assert "ValueError: a reason" in second["exception"]
    with pytest.raises(SettingError, match="SAMEBITS_LOG="):
        logs.write_to(str(tmp_path / "no" / "log"))


@pytest.mark.parametrize("text", ["x", "0", "70000", "-1"])
def test_ports_that_are_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEBITS_METRICS", text)
    with pytest.raises(SettingError, match="SAMEBITS_METRICS="):
        settings.metrics_port()


SERVED = """
import sys; sys.path.insert(0, sys.argv[1])
import samebits, receipt_samples
from samebits.guard.receipts import active
receipt_samples.fill(active(), 4)
"""


def test_the_environment_starts_receipts_and_logs(tmp_path: Path) -> None:
    ledger, log = tmp_path / "r.sqlite", tmp_path / "log"
    env: dict[str, Any] = os.environ | {
        "SAMEBITS": "1", "SAMEBITS_RECEIPTS": str(ledger), "SAMEBITS_LOG": str(log),
    }  # fmt: skip
    command = [sys.executable, "-c", SERVED, str(Path(__file__).parent)]
    subprocess.run(command, env=env, check=True, timeout=120)
    assert verify(ledger).records == 4 and log.exists()
    env.pop("SAMEBITS")
    quiet = subprocess.run(
        [sys.executable, "-c", "import samebits.guard.receipts as r; assert r.active() is None"],
        env=env, check=True, timeout=120,
    )  # fmt: skip
    assert quiet.returncode == 0
