"""One value, three forms: a table in the terminal, a JSON file, one HTML page with pictures."""

from __future__ import annotations

from pathlib import Path

from samebits.check.explanation import Explanation
from samebits.check.result import Report

__all__ = ["save", "save_explanation"]


def save(report: Report, directory: Path, *, page: bool = True) -> list[Path]:
    """Writes ``samebits-report.json`` and, with `page`, ``samebits-report.html``.

    Returns:
        The paths of the files, the page first.
    """
    from samebits.report import html

    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "samebits-report.json"
    data.write_text(report.to_json(), encoding="utf-8")
    if not page:
        return [data]
    sheet = directory / "samebits-report.html"
    sheet.write_text(html.render(report), encoding="utf-8")
    return [sheet, data]


def save_explanation(found: Explanation, directory: Path, *, page: bool = True) -> list[Path]:
    """Writes ``samebits-explanation.json`` and, with `page`, ``samebits-explanation.html``.

    Returns:
        The paths of the files, the page first.
    """
    from samebits.report import explanation

    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "samebits-explanation.json"
    data.write_text(found.to_json(), encoding="utf-8")
    if not page:
        return [data]
    sheet = directory / "samebits-explanation.html"
    sheet.write_text(explanation.render(found), encoding="utf-8")
    return [sheet, data]
