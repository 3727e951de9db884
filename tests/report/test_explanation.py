"""An explanation in its three forms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from rich.console import Console
from test_report import Balanced
from torch import Tensor, nn

from samebits.check import Explanation, explain
from samebits.check.explanation import KINDS
from samebits.report import explanation, save_explanation


class Faulty(nn.Module):
    """Its second layer multiplies by more when there are several rows."""

    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.mul(x, 1.0 if len(x) < 4 else 1.5)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.ReLU(), self.Scaled(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """x [B, D]."""
        out: Tensor = self.third(self.second(self.first(x)))
        return out


X = torch.rand(8, 16, generator=torch.Generator().manual_seed(0)) + 1


@pytest.fixture(scope="module")
def found() -> Explanation:
    return explain(Faulty(), X[:1], X, align=(0, 0), name="<faulty> & co")


def text_of(found: Explanation, files: list[Path]) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    explanation.show(found, console, files)
    return console.export_text()


def test_the_terminal_says_where_why_how_much_and_whether_it_may(found: Explanation) -> None:
    text = text_of(found, [Path("somewhere.json")])
    assert "<faulty> & co: semantics at aten.mul.Tensor in second" in text
    assert re.search(r"where\s+aten\.mul\.Tensor in second \(Scaled\)", text)
    assert re.search(r"called at\s+\S*test_explanation\.py:\d+", text)
    assert "16 of 16 elements" in text
    assert "They should not differ" in text and "written somewhere.json" in text
    assert found.kind == "semantics" and not found.allowed


def test_the_page_is_whole_and_self_contained(found: Explanation) -> None:
    page = explanation.render(found)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert not re.findall(r"https?://|<script|<link|@import|url\(", page)
    assert "&lt;faulty&gt; &amp; co" in page and "<faulty>" not in page
    for factor in found.factors:
        assert explanation.OUTCOMES[factor.outcome] in page
    assert KINDS["semantics"].title in page and "first module" in page


def test_equal_runs_are_called_equal() -> None:
    same = explain(Faulty(), X[:1], X[:3], align=(0, 0))
    text = text_of(same, [])
    assert "equal, every bit of every module" in text and "They agree, as they should" in text
    assert same.allowed and explanation.render(same).count("<h1>") == 1


def test_files_are_written_and_read_back(found: Explanation, tmp_path: Path) -> None:
    page, data = save_explanation(found, tmp_path / "new")
    assert page.suffix == ".html" and Explanation.from_json(data.read_text()) == found
    assert save_explanation(found, tmp_path, page=False) == [tmp_path / data.name]
    with pytest.raises(ValueError, match="not a samebits explanation"):
        Explanation.from_json('{"format": 1}')
