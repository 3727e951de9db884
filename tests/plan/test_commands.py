"""samebits plan: what it prints, writes and exits with, without a GPU."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from fake_family import BUCKETS, Own, Vendor
from rich.console import Console
from typer.testing import CliRunner

from samebits.cli import app
from samebits.engines.schedule import ScheduleKey
from samebits.plan import document
from samebits.plan import stack as stacks
from samebits.plan.document import Choice, Entry, Plan, Struck
from samebits.plan.keys import contract_at
from samebits.plan.stack import Stack
from samebits.report import plan as report

pytestmark = pytest.mark.usefixtures("fake")
no_gpu = pytest.mark.skipif(stacks.gpu_of("sm_90") is not None, reason="there is an sm_90 GPU")


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)], env={"COLUMNS": "40"})
    return result.exit_code, result.output


@pytest.fixture
def file(keys: list[ScheduleKey], stack: Stack, tmp_path: Path) -> Path:
    choice = Choice(
        schedule=Vendor(algorithm=66), us=10.0, runner_up=Own(tile=64), runner_up_us=11.0,
        own=Own(tile=64, warps=8), own_us=11.5,
    )  # fmt: skip
    entries = [
        Entry(
            key=key,
            contract=contract_at(key).text,
            choices=(choice,) * (len(BUCKETS) + 1),
            stock_us=(12.0,) * len(BUCKETS),
            struck=(Struck(m=1, schedule=Own(tile=7), why="2 of 9 elements differ"),),
        )
        for key in keys
    ]
    Plan.of(entries, stack, samebits="1.0", tuned="2026-11-29").save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_build_writes_what_show_reads(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    status, text = run(
        "build", "--model", "qwen3-0.6b", "--tp", "1,8", "--shape", "64,128", "-o", path
    )
    assert status == 0, text
    plan = document.read(path)
    assert plan.id in text and "not measured" in text
    assert any((e.key.n, e.key.k) == (64, 128) for e in plan.entries)
    status, text = run("show", path)
    assert status == 0 and plan.id in text and plan.schedules_id in text


def test_build_for_a_cpu_has_contracts_and_no_schedules(tmp_path: Path) -> None:
    status, text = run("build", "--shape", "64x128", "--device", "cpu", "-o", tmp_path / "c.json")
    assert status == 0 and "none" in text
    (entry,) = document.read(tmp_path / "c.json").entries
    assert entry.choices == () and "lanes(16)" in entry.contract


def test_show_sums_up_and_goes_into_detail(file: Path) -> None:
    status, text = run("show", file)
    assert status == 0
    for word in ("H200", "cuBLASLt 13.1.0", "measured 2026-11-29", "21 test.vendor", "1.20x"):
        assert word in text
    status, text = run("show", file, "--shape", "576,7168")
    assert status == 0
    for word in ("split(4)", "test.vendor algorithm 66", "test.own tile 64 w8", "> 8192",
                 "struck out", "2 of 9 elements differ"):  # fmt: skip
        assert word in text
    assert "4096 x 4096" not in text


def test_a_pipe_gets_every_bucket_in_a_line(file: Path) -> None:
    status, text = run("show", file, "--shape", "576,7168")
    assert status == 0
    (row,) = (" ".join(line.split()) for line in text.splitlines() if line.startswith("> 8192"))
    schedules = (
        "test.vendor algorithm 66 10.0",
        "test.own tile 64 w4 11.0",
        "test.own tile 64 w8 11.5",
    )
    assert row == " ".join(("> 8192", *schedules))


@pytest.mark.parametrize("width", [72, 200])
def test_a_terminal_gets_all_data_in_its_width(file: Path, width: int) -> None:
    plan = document.read(file)
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=True, color_system=None)
    report.show(plan, console, [e for e in plan.entries if e.key.n == 576])
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(written.getvalue().split())
    assert words.count("test.vendor algorithm 66 10.0") == 21
    assert words.count("test.own tile 64 w4 11.0") == 21
    assert words.count("test.own tile 64 w8 11.5") == 21
    written.seek(0), written.truncate()
    report.show(plan, console)
    assert max(map(len, written.getvalue().splitlines())) <= width
    assert written.getvalue().count("1.20x") == 2 * len(plan.entries)


def test_show_and_build_as_json(file: Path, tmp_path: Path) -> None:
    plan = document.read(file)
    status, text = run("show", file, "--shape", "576,7168", "--json")
    found = json.loads(text)
    assert status == 0
    assert (found["id"], found["schedules_id"]) == (plan.id, plan.schedules_id)
    assert found["stack"]["cublaslt"] == "13.1.0" and found["tuned"] == "2026-11-29"
    (entry,) = found["entries"]
    assert entry["key"]["tree"] == "split(4)" and "tree: split(4)" in entry["contract"]
    assert [b["rows"] for b in entry["buckets"]] == [*BUCKETS, None]
    first, last = entry["buckets"][0], entry["buckets"][-1]
    assert first["schedule"] == {"kind": "test.vendor", "algorithm": 66}
    assert first["own"] == {"kind": "test.own", "tile": 64, "warps": 8}
    assert (first["us"], first["stock_us"], last["stock_us"]) == (10.0, 12.0, None)
    assert entry["struck"][0]["why"] == "2 of 9 elements differ"
    made = tmp_path / "c.json"
    status, text = run("build", "--shape", "64,8", "--device", "cpu", "--json", "-o", made)
    assert status == 0 and json.loads(text)["id"] == document.read(made).id


@pytest.mark.parametrize("name", ["sm_90", "h200", "H100"])
def test_a_device_has_the_names_of_its_chips(name: str, tmp_path: Path) -> None:
    status, text = run("show", "--device", name)
    assert status == 0 and "(sm_90, 0 keys)" in text
    status, text = run("build", "--shape", "64,128", "--device", name, "-o", tmp_path / "p")
    assert status == 0 and "(sm_90, 1 keys)" in text


def test_show_without_a_file_shows_the_tables() -> None:
    status, text = run("show")
    assert status == 0 and "0 keys" in text


def test_diff_tells_speed_from_bits(file: Path, tmp_path: Path) -> None:
    assert run("diff", file, file) == (0, "the same contracts and the same schedules\n")
    run("build", "--shape", "4096,4096", "-o", tmp_path / "a.json")
    status, text = run("diff", file, tmp_path / "a.json")
    assert status == 0
    assert "the same bits" in text and "removed" in text and "speed" in text


def test_diff_of_plans_with_no_key_in_common(tmp_path: Path) -> None:
    for name, shape in (("a", "64,128"), ("b", "64,256")):
        run("build", "--shape", shape, "-o", tmp_path / name)
    status, text = run("diff", tmp_path / "a", tmp_path / "b")
    assert status == 2 and "no key in common" in text and "same bits" not in text
    assert "removed  linear 64 x 128" in text and "added    linear 64 x 256" in text


def test_diff_exits_with_1_for_other_bits(tmp_path: Path, stack: Stack) -> None:
    for name, tree in (("a", "chain"), ("b", "balanced(8)")):
        key = ScheduleKey(
            op="linear", device="sm_90", dtype="bf16", out_dtype="bf16", n=64, k=4096, tree=tree
        )
        Plan.of([Entry(key=key, contract=contract_at(key).text)], stack).save(tmp_path / name)
    status, text = run("diff", tmp_path / "a", tmp_path / "b")
    assert status == 1
    assert "other bits" in text and "+ tree: balanced(8)" in text


@no_gpu
def test_what_needs_the_device_says_so(file: Path, tmp_path: Path) -> None:
    for arguments in (("verify", file), ("tune", "--shape", "8,8", "-o", tmp_path / "t.json")):
        status, text = run(*arguments)
        assert status == 2 and "sm_90" in text
        assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("build", "-o", "x.json"), "name something"),
        (("build", "--shape", "8", "-o", "x.json"), "n,k"),
        (("build", "--shape", "8,zero", "-o", "x.json"), "no positive number"),
        (("build", "--shape", "8,8", "--tp", "0", "-o", "x.json"), "no positive number"),
        (("build", "--shape", "8,9", "--tp", "1,3,", "-o", "x.json"), "no positive number"),
        (("build", "--model", "gpt-9", "-o", "x.json"), "is not known"),
        (("build", "--shape", "8,8", "--dtype", "int8", "-o", "x.json"), "int8"),
        (("build", "--shape", "8,8", "--device", "sm_70", "-o", "x.json"), "sm_70"),
        (("build", "--shape", "8,8", "--device", "exact", "-o", "x.json"), "sm_90 (h100, h200)"),
        (("tune", "--shape", "8,8", "--device", "gpu", "-o", "x.json"), "sm_90 (h100, h200)"),
        (("show", "--device", "exact"), "nothing to plan"),
        (("show", "--device", "cuda"), "there is no device class 'cuda'"),
        (("show", "nowhere.json"), "nowhere.json"),
        (("show", "--shape", "3,5"), "holds no weight of 3,5"),
        (("build", "--shape", "8,8", "--tp", "3", "-o", "x.json"), "a bare shape is not cut"),
        (("build", "--shape", f"{2**31},8", "-o", "x.json"), "below 2**31"),
        (("verify", "--device", "cpu"), "holds no schedules"),
    ],
)
def test_misuse_is_one_line_and_status_2(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, text = run(*arguments)
    assert status == 2 and words in text
    assert text.startswith(f"samebits plan {arguments[0]}: ") and "Traceback" not in text
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_said(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"12.0", b"99.0", 1))
    status, text = run("show", file)
    assert status == 2 and "damaged or edited" in text and str(file) in text
