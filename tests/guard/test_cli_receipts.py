"""``samebits receipts``."""

from __future__ import annotations

import importlib.util
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
    assert bad.exit_code == 1 and "missing: record 2 is missing" in bad.stdout
    assert "NOT whole, 1 fault;" in bad.stdout
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
    for absent in ("r9", "\udc80"):
        assert run(cli.app, ["receipts", "show", str(ledger), absent]).exit_code == 2
    name = 'a "quoted"\tname, ü\x7f\\'
    with Recorder(ledger) as recorder:
        recorder.add(samples.receipt(6, request=name), {samples.NAME: samples.BODY})
    found = json.loads(run(cli.app, ["receipts", "show", str(ledger), name]).stdout)
    assert found["sequence"] == 6
    assert json.loads(run(cli.app, ["receipts", "show", str(ledger)]).stdout)["sequence"] == 6


def test_an_audit_looks_at_the_chain_first(ledger: Path, tmp_path: Path) -> None:
    command = ["audit", str(ledger), "3", "--weights", str(tmp_path)]
    whole = run(cli.app, command)
    assert whole.exit_code == 2 and "no safetensors files" in whole.stderr, whole.stderr
    answer = "replace(body, '\"output\":[3,4]', '\"output\":[3,5]')"
    samples.tamper(
        ledger,
        "DELETE FROM records WHERE sequence = 2",
        f"UPDATE records SET body = {answer} WHERE sequence = 4",
    )
    broken = run(cli.app, command)
    assert broken.exit_code == 2 and broken.stdout == ""
    assert "the chain is not whole: record 2 is missing (2 faults). What" in broken.stderr
    warned = run(cli.app, [*command, "--broken-chain"])
    assert warned.exit_code == 2 and "no safetensors files" in warned.stderr
    assert "warning: " in warned.stderr and "the chain is not whole" in warned.stderr


def test_numbers_that_there_are(ledger: Path, tmp_path: Path) -> None:
    for command in ("replay", "audit"):
        done = run(cli.app, [command, str(ledger), "17"])
        assert done.exit_code == 2
        assert "have the numbers 1 to 5: '17' is none of these" in done.stderr
    samples.tamper(ledger, "DELETE FROM records WHERE sequence = 2")
    done = run(cli.app, ["audit", str(ledger), "2"])
    assert done.exit_code == 2 and "record 2 is missing" in done.stderr
    Recorder(tmp_path / "empty.sqlite").close()
    done = run(cli.app, ["receipts", "show", str(tmp_path / "empty.sqlite"), "last"])
    assert done.exit_code == 2 and "holds no record yet" in done.stderr


def test_an_engine_that_is_not_installed(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = run(cli.app, ["replay", str(ledger), "3"])
    assert done.exit_code == 2 and "transformers is not installed here" in done.stderr


def test_head_of_an_empty_ledger(tmp_path: Path) -> None:
    Recorder(tmp_path / "r.sqlite").close()
    assert run(cli.app, ["receipts", "head", str(tmp_path / "r.sqlite")]).exit_code == 1


def test_a_file_that_is_no_ledger(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE t (x)").connection.close()
    for command in ("verify", "export", "head"):
        done = run(cli.app, ["receipts", command, str(tmp_path / "other")])
        assert done.exit_code == 2 and "this is no file of receipts" in done.stderr


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{\n"checksum": "9",\n"schedules_id": "7"\n}\n', "; it is a plan, which `samebits plan"),
        ('{"verdict": "equal", "factors": []}', "; it is an explanation of `samebits explain`"),
        ('{"hash": "", "sequence": 1}\n', "this is no file of receipts"),
        ("# Notes\n", "this is no file of receipts"),
        ("", "this is no file of receipts"),
    ],
)  # fmt: skip
def test_another_file_is_named(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(text)
    for command in (["receipts", "verify"], ["receipts", "head"], ["replay"], ["audit"]):
        done = run(cli.app, [*command, str(tmp_path / "other")])
        assert done.exit_code == 2 and what in done.stderr and "truncated" not in done.stderr


def test_a_large_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    """More than memory holds: what a checkpoint looks like, without its bytes."""
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(1 << 38)
    done = run(cli.app, ["receipts", "verify", str(tmp_path / "model.safetensors")])
    assert done.exit_code == 2 and "this is no file of receipts" in done.stderr
