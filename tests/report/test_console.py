"""What a pipe gets, and what a terminal gets."""

from __future__ import annotations

import io
import sys

import pytest
from rich.table import Table

from samebits.check import Progress
from samebits.report import terminal
from samebits.report.console import lines, open_console


def wide() -> Table:
    table = Table(box=None)
    for _ in range(3):
        table.add_column("x" * 90)
    table.add_row("a" * 90, "b", "")
    return table


@pytest.fixture(autouse=True)
def nothing_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_pipe_gets_whole_lines_without_blanks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, name, io.StringIO())
    open_console(stderr=name == "stderr").print(wide())
    lines = getattr(sys, name).getvalue().splitlines()
    assert lines[0].split() == ["x" * 90] * 3 and lines[1].split() == ["a" * 90, "b"]
    assert all(line == line.rstrip() for line in lines)


def test_a_terminal_gets_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    open_console().print("a " * 100)
    lines = sys.stdout.getvalue().splitlines()
    assert len(lines) == 4 and max(map(len, lines)) <= 60


def test_a_bar_goes_to_the_terminal_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is in a pipe; whoever waits looks at standard error."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", Terminal())
    with terminal.progress(open_console(), "tiny") as tell:
        tell(Progress(3, 4, "rows, switch on"))
    assert "tiny" in sys.stderr.getvalue() and "75%" in sys.stderr.getvalue()
    assert sys.stdout.getvalue() == ""


def test_steps_that_are_called_alike_have_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    tell = lines("tune")
    for done, what in enumerate(("a", "a", "b", "a")):
        tell(done, 4, what)
    said = [line.replace(", 0 s", "") for line in capsys.readouterr().err.splitlines()]
    assert said == ["tune: 1 of 4: a", "tune: 3 of 4: b", "tune: 4 of 4: a"]


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_step_goes_on_where_its_line_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is it written to standard output, which may be a report in JSON."""
    for stream in (Gone(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        lines("tune")(0, 4, "a")
    assert capsys.readouterr().out == ""
