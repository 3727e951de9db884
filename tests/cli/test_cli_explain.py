"""``samebits explain`` and ``samebits check --explain``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from samebits.check import Explanation, Report
from samebits.cli import app

MODULE = """
import torch

class Scaled(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * (1.0 if len(x) < 5 else 1.5))

X = torch.rand(8, 16) + 1
model = Scaled()

def differs():
    return model, X[:1], X, (0, 0)

def agrees():
    return model, X, X

def nothing():
    return 3

def checked():
    return model, X

def refused():
    return torch.nn.Linear(16, 2), X, X[:, :3]

def one():
    return (model,)

def odd():
    return model, 3

def broken():
    raise ValueError("no such weights")
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with runs to explain, in the working directory."""
    name = f"explained_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return name


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "40"})
    return result.exit_code, result.output


def test_runs_that_differ(name: str, tmp_path: Path) -> None:
    status, text = run("explain", f"{name}:differs")
    assert status == 1, text
    assert "semantics at aten.mul.Tensor" in text and f"{name}.py:6" in text
    found = Explanation.from_json((tmp_path / "samebits-explanation.json").read_text())
    assert found.kind == "semantics" and (tmp_path / "samebits-explanation.html").exists()


def test_runs_that_agree(name: str) -> None:
    status, text = run("explain", f"{name}:agrees", "--json", "--no-html")
    assert status == 0, text
    assert json.loads(text[text.index("{") :])["verdict"] == "equal"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}:nothing"], "must give (model, first, second)"),
        (["{}:missing"], "has no 'missing'"),
        (["{}"], "give module:function, or the JSON files"),
        (["a.json", "b.json"], "a.json cannot be read as a report"),
        (["{}:refused"], "the second run raised RuntimeError: mat1 and mat2"),
        (["{}:broken"], "broken raised ValueError: no such weights"),
        (["halves:pair"], "module 'halves' raised SyntaxError"),
    ],
)
def test_what_could_not_run_ends_with_2(name: str, arguments: list[str], message: str) -> None:
    Path("halves.py").write_text("pair = (")
    status, text = run("explain", *(argument.format(name) for argument in arguments))
    assert status == 2 and message in text, text


def test_check_of_runs_says_what_compares_them(name: str) -> None:
    status, text = run("check", f"{name}:differs")
    assert status == 2 and "Traceback" not in text
    assert f"{name}:differs gives a tuple of 4: two runs are compared by `samebits explain" in text
    status, text = run("check", f"{name}:one")
    assert status == 2 and f"{name}:one gives a tuple of 1: check takes a model" in text
    status, text = run("check", f"{name}:odd")
    assert status == 2 and "inputs=3: pass a tensor" in text


def test_where_it_is_written(name: str, tmp_path: Path) -> None:
    status, text = run("explain", f"{name}:agrees", "--out", "not/there/yet")
    assert status == 0 and Path("not/there/yet/samebits-explanation.json").exists(), text
    Path("file").write_text("")
    for answer, *command in (
        ("They agree", "explain", f"{name}:agrees"),
        (name, "check", f"{name}:checked", "--no-costs"),
    ):
        status, text = run(*command, "--out", "file")
        assert status == 2 and "cannot write to file: File exists" in text, text
        assert answer in text  # it is shown all the same


def test_check_explains_and_two_reports_are_compared(name: str, tmp_path: Path) -> None:
    options = ("--no-costs", "--no-html", "--promise", "rows", "--explain")
    status, text = run("check", f"{name}:checked", "--out", "one", *options)
    assert status == 1 and "why, stock PyTorch: semantics" in text, text
    report = Report.from_json(Path("one/samebits-report.json").read_text())
    assert report.tests[0].stock is not None and report.tests[0].stock.explanation is not None
    changed = (
        report.to_json()
        .replace('"torch": "', '"torch": "0.')
        .replace(report.digests[0].value, "0" * 16)
    )
    Path("two.json").write_text(changed)
    status, text = run("explain", "one/samebits-report.json", "two.json")
    assert status == 1 and "library version" in text and "torch" in text, text
    status, text = run("explain", "one/samebits-report.json", "one/samebits-report.json")
    assert status == 0, text
