"""``samebits receipts``."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import receipt_samples as samples
from typer.testing import CliRunner

from samebits import cli
from samebits.guard.receipts import Recorder

run = CliRunner().invoke


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "r.sqlite"
    with Recorder(path) as recorder:
        samples.fill(recorder, 5)
    return path


def test_verify(ledger: Path) -> None:
    head = run(cli.app, ["receipts", "head", str(ledger)]).stdout.strip()
    good = run(cli.app, ["receipts", "verify", str(ledger), "--head", head])
    assert good.exit_code == 0 and f"5 records; the chain is whole; head {head}" in good.stdout
    samples.tamper(ledger, "DELETE FROM records WHERE sequence = 2")
    bad = run(cli.app, ["receipts", "verify", str(ledger)])
    assert bad.exit_code == 1 and "missing: 2" in bad.stdout and "NOT whole" in bad.stdout
    found = json.loads(run(cli.app, ["receipts", "verify", str(ledger), "--json"]).stdout)
    assert found["faults"][0]["kind"] == "missing"
    assert run(cli.app, ["receipts", "verify", str(ledger), "--head", "no"]).exit_code == 2


def test_export(ledger: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    assert run(cli.app, ["receipts", "export", str(ledger), "-o", str(out)]).exit_code == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == (
        ["header", "object"] + 5 * ["hash"] + ["head"]
    )  # fmt: skip
    assert lines[1]["value"]["engine"] == "transformers"
    assert run(cli.app, ["receipts", "verify", str(out)]).exit_code == 0
    missing = ["receipts", "export", str(ledger), "-o", str(tmp_path / "no" / "r")]
    assert run(cli.app, missing).exit_code == 2


def test_show(ledger: Path) -> None:
    for which in ("3", "r3"):
        found = json.loads(run(cli.app, ["receipts", "show", str(ledger), which]).stdout)
        assert found["record"]["request"] == "r3" and found["sequence"] == 3
        assert found["identity"]["plan"] == "2" * 16
    assert run(cli.app, ["receipts", "show", str(ledger), "r9"]).exit_code == 2


def test_head_of_an_empty_ledger(tmp_path: Path) -> None:
    Recorder(tmp_path / "r.sqlite").close()
    assert run(cli.app, ["receipts", "head", str(tmp_path / "r.sqlite")]).exit_code == 1


def test_a_file_that_is_no_ledger(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE t (x)").connection.close()
    for command in ("verify", "export", "head"):
        done = run(cli.app, ["receipts", command, str(tmp_path / "other")])
        assert done.exit_code == 2 and "this is no file of receipts" in done.stderr
