"""The report in its three forms: the numbers are in it, and the page needs nothing from outside."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Iterator
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from rich.console import Console

from samebits.bench import Row
from samebits.check import Report, check
from samebits.check.result import Case, Outcome, Speed, Test, Text
from samebits.report import costs, html, save, summary, svg, terminal


def faulty(x: torch.Tensor) -> torch.Tensor:
    return x * (1.0 if len(x) < 5 else 1.0 + 2.0**-20)


@pytest.fixture(scope="module")
def broken() -> Report:
    return check(faulty, torch.randn(3, 40), name="<faulty> & co", switch=nullcontext)


@pytest.fixture(scope="module")
def sound() -> Report:
    return check(torch.relu, torch.randn(3, 40), costs=False)


class Balanced(HTMLParser):
    """Fails on tags that are not closed in order."""

    VOID = frozenset({"meta", "br", "rect", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, tag


def test_the_page_is_whole_and_self_contained(broken: Report) -> None:
    page = html.render(broken)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert not re.findall(r"https?://|<script|<link|@import|url\(", page)
    assert "&lt;faulty&gt; &amp; co" in page and "<faulty>" not in page
    assert "aten.mul.Tensor" in page


def test_every_case_is_in_the_page(broken: Report) -> None:
    page = html.render(broken)
    count = sum(len(o.cases) for t in broken.tests for o in (t.stock, t.switched) if o)
    assert f"<summary>{count} cases</summary>" in page
    assert page.count('class="side stock"') >= 2
    for speed in broken.speed:
        assert f">{speed.ratio:.2f}×<" in page


def test_the_verdict_follows_the_switched_side(broken: Report, sound: Report) -> None:
    assert "a promise is broken" in summary.headline(broken)
    assert "the same request, the same bits" in summary.headline(sound)
    assert "kept every bit in all 7 tests" in summary.sentence(sound)
    failed = Test("rows", None, Outcome((Case("M = 1", error="UncoveredError: no"),), 0.0))
    report = Report("f", "function", {}, (failed,))
    assert report.exit_status == 2 and "could not be tested" in summary.headline(report)
    assert "UncoveredError: no" in html.render(report)


def test_files_are_written_and_read_back(broken: Report, tmp_path: Path) -> None:
    page, data = save(broken, tmp_path / "new")
    assert (page.name, data.name) == ("samebits-report.html", "samebits-report.json")
    assert Report.from_json(data.read_text()) == broken
    assert save(broken, tmp_path / "other", page=False) == [tmp_path / "other" / data.name]
    assert not (tmp_path / "other" / page.name).exists()


def test_the_terminal_names_verdicts_and_the_first_operation(broken: Report) -> None:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    terminal.show(broken, console, [])
    text = console.export_text()
    assert re.search(r"number of rows\s+✗ .* differ .*✗ .* differ", text)
    assert re.search(
        r"first to differ, samebits: aten.mul.Tensor, defect \(number of rows, padding\)", text
    )
    assert re.search(r"repeats\s+✓ same 10 cases\s+✓ same 10 cases", text)
    assert "does not apply" in text and "M = 64" in text


def test_progress_reaches_its_end() -> None:
    console = Console(width=120, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    steps = []
    with terminal.progress(console, "relu") as tell:
        check(
            torch.relu, torch.ones(2, 3), costs=False,
            progress=lambda step: (steps.append(step), tell(step)),
        )  # fmt: skip
    assert [step.done for step in steps] == sorted({step.done for step in steps})
    assert all(step.done < step.total for step in steps)


def test_shades_grow_with_the_share() -> None:
    shares = (0.0, 1e-6, 0.005, 0.05, 0.3, 1.0)
    assert [svg.shade(share) for share in shares] == ["same", "d1", "d2", "d3", "d4", "d5"]


def test_a_batch_map_has_one_cell_for_each_request() -> None:
    cases = [
        Case(f"M = {m}", m, elements=10 * m, rows=tuple(10 if r > 1 else 0 for r in range(m)))
        for m in (1, 2, 5)
    ]
    picture = svg.batch_map(cases, "map")
    assert picture.count('class="same"') == 5 and picture.count('class="d5"') == 3


def test_texts_that_part_are_shown_with_the_place() -> None:
    texts = tuple(
        Text(side, "Once", 3, "aab", end, 3, steps, 0 if steps else None, token)
        for side, end, steps, token in (("stock", "aac", 3, 2), ("switched", "aab", 0, None))
    )
    sound = Outcome((Case("M = 1", 1, elements=1, rows=(0,)),), 0.0)
    report = Report("m", "causal language model", {}, (Test("rows", sound, sound),), texts=texts)
    page = html.render(report)
    assert "aa<mark>b</mark>" in page and "aa<mark>c</mark>" in page
    assert "another token at step 3" in page
    assert "bit for bit, at all 3 steps" in page


def test_costs_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("linear", "M=1", 2e-3, 1e-3, 1.5), Row("import", "samebits", None, 0.05)]
    line = r"linear\s+M=1\s+2 ms\s+1 ms\s+2.00x\s+≥ 1.5x"
    console = Console(width=120, record=True, force_terminal=True, file=io.StringIO())
    costs.show(rows, console=console)
    assert re.search(line, console.export_text())
    costs.show(rows, as_json=True)
    assert '"ratio": 2.0' in capsys.readouterr().out
    assert svg.rate(0.5, "token") == "2 tokens/s" and svg.rate(2e-5, "call") == "20 µs"
    assert "2.00×" in svg.costs([Speed("M = 1", "call", 2.0, 1.0)])


def test_costs_in_a_file_are_written_one_by_one() -> None:
    file = io.StringIO()

    def rows() -> Iterator[Row]:
        yield Row("exact rows", "sum fp32 [512, 4096]", 2e-3, 1e-3, 1.5)
        assert re.search(
            r"^exact rows +sum fp32 \[512, 4096\] +2 ms +1 ms +2.00x +≥ 1.5x$",
            file.getvalue(), re.MULTILINE,
        )  # fmt: skip
        yield Row("exact rows", "mean", None, 0.05)

    costs.show(rows(), console=Console(file=file))
    head, first, second = file.getvalue().splitlines()
    assert head.split() == ["area", "case", "stock", "PyTorch", "samebits", "ratio", "aim"]
    assert second.split() == ["mean", "50", "ms"]
    assert first.index("1 ms") + 4 == second.index("50 ms") + 5 == head.index("samebits") + 8
    assert file.getvalue().endswith("\n")


def test_noise_is_drawn_and_judged() -> None:
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    report = check(lambda x: x @ weight.T, torch.randn(1, 1024), promises=["rows"], costs=False)
    (test,) = report.tests
    found = test.stock.divergence.noise if test.stock and test.stock.divergence else None
    assert found is not None
    page = html.render(report)
    Balanced().feed(page)
    assert "Noise, predicted and observed" in page and "reordering</h3>" in page
    picture = svg.noise(found, found.stock, "d4", "noise")
    assert picture.count("<rect") > 3 and "certified" in picture and "outline" in picture
    assert "inside the certified interval" in summary.noise_sentence(found)
    worse = dataclasses.replace(found, verdict="defect", outside=7)
    assert "7 of" in summary.noise_sentence(worse)
    console = Console(record=True, width=200)
    terminal.show(report, console, [])
    assert "mm, reordering" in console.export_text()
