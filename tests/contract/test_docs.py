"""docs/contracts.md shows what the code says."""

from __future__ import annotations

from pathlib import Path

import samebits
from samebits.contract import parse_tree

DOCS = Path(__file__).parents[2] / "docs"


def test_the_drawing_in_the_docs_is_current() -> None:
    contract = samebits.contract_of("linear", n=1024, k=3072, dtype="bf16", device="sm_90")
    page = (DOCS / "contracts.md").read_text()
    assert contract.render() in page
    assert contract.render("svg") == (DOCS / "img" / "split4.svg").read_text()


def test_the_trees_in_the_docs_parse() -> None:
    page = (DOCS / "contracts.md").read_text()
    rows = page.partition("| text | order |")[2].partition("## ")[0].splitlines()
    texts = [row.split("`")[1] for row in rows if "`" in row]
    assert len(texts) == 7
    for text in texts:
        assert str(parse_tree(text)) == text
