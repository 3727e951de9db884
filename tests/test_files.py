"""What a file is, when another one was wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from samebits import plan
from samebits.check import Report
from samebits.check.machines.record import load
from samebits.cli import app
from samebits.errors import PlanError, SettingError
from samebits.files import PLAN, RECORD, it_is
from samebits.plan import document


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """One file of each kind that is made without computing anything."""
    made = plan.build([(8, 8)], device="cpu")
    made.save(tmp_path / "plan.json")
    printed = CliRunner().invoke(app, ["plan", "show", str(tmp_path / "plan.json"), "--json"])
    (tmp_path / "shown.json").write_text(printed.stdout)
    report = Report(target="tiny", kind="function", environment={}, tests=())
    (tmp_path / "report.json").write_text(report.to_json())
    return {path.stem: path for path in tmp_path.iterdir()}


def test_each_reader_names_the_others_files(files: dict[str, Path]) -> None:
    with pytest.raises(PlanError, match="no plan; it is a report of `samebits check`, which"):
        document.read(files["report"])
    with pytest.raises(PlanError, match="no plan; it is what `samebits plan show --json` prints"):
        document.read(files["shown"])
    with pytest.raises(SettingError, match="no record; it is a plan, which `samebits plan show`"):
        load(files["plan"])
    explained = CliRunner().invoke(app, ["explain", *[str(files["plan"])] * 2])
    assert explained.exit_code == 2 and "as a report; it is a plan" in explained.output


def test_a_damaged_file_is_still_of_its_kind(files: dict[str, Path]) -> None:
    data = files["plan"].read_bytes()
    assert "it is a plan" in it_is(data, RECORD)
    assert it_is(data, PLAN) == it_is(data[:-10], RECORD) == it_is(b"[1]", PLAN) == ""
    assert it_is(b"SQLite format 3\0" + bytes(80), PLAN).startswith("; it is a file of receipts")
    files["plan"].write_bytes(data.replace(b'"tuned":""', b'"tuned":7'))
    with pytest.raises(PlanError, match="no plan: Expected `str`, got `int`"):
        document.read(files["plan"])


def test_brackets_without_end(tmp_path: Path) -> None:
    """No decoder's depth ends a command with a stack trace."""
    deep = tmp_path / "deep"
    for text in ('{"a":' * 100_000, '{"header":' * 100_000, "[" * 100_000, '{"id":' * 100_000):
        deep.write_text(text)
        for command in ("plan show", "plan diff", "compare", "explain", "receipts head", "audit"):
            twice = command in ("plan diff", "compare", "explain")
            done = CliRunner().invoke(app, [*command.split(), *[str(deep)] * (1 + twice)])
            assert done.exit_code == 2 and "deep" in done.output, (command, done.exception)
