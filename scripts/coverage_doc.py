"""Writes docs/coverage.md."""

from __future__ import annotations

from pathlib import Path

from samebits.mode.document import coverage_markdown

if __name__ == "__main__":
    path = Path(__file__).parent.parent / "docs" / "coverage.md"
    path.write_text(coverage_markdown(), encoding="utf-8")
