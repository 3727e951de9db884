"""Drawn trees: nothing overlaps, nothing leaves the picture, whatever the tree."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.contract.tree import Balanced, Chain, Lanes, Segment, Split, Tree
from samebits.report import tree_panels, tree_svg
from samebits.reveal import RevealedTree

SVG = "{http://www.w3.org/2000/svg}"
TREES: list[tuple[Tree, int, int]] = [
    (Chain(), 1, 1),
    (Chain(), 2, 1),
    (Chain(), 16384, 1),
    (Chain(), 16384, 16),
    (Split(4), 4096, 16),
    (Split(8), 16384, 16),
    (Balanced(8), 16384, 16),
    (Segment(128), 7168, 32),
    (Lanes(16), 4096, 1),
    (Lanes(4), 10, 1),
    (Segment(1024, Lanes(16), "pairwise"), 16384, 1),
    (Segment(8192, Lanes(1024, "neighbours"), "pairwise"), 16384, 1),
    (Segment(100, Lanes(8)), 1033, 1),
]


def random_tree(leaves: int, seed: int) -> RevealedTree:
    rng = np.random.default_rng(seed)
    pool, children = list(range(leaves)), []
    while len(pool) > 1:
        width = min(int(rng.integers(2, 4)), len(pool))
        taken = [pool.pop(int(rng.integers(len(pool)))) for _ in range(width)]
        children.append(taken)
        pool.append(leaves + len(children) - 1)
    return RevealedTree.of(leaves, children)


def lines(svg: str) -> list[tuple[float, float, float, float, str]]:
    """left, top, right, bottom and content of every text, as wide as a wide face makes it."""
    found = []
    for element in ET.fromstring(svg).iter(f"{SVG}text"):
        kind, content = element.get("class", ""), element.text or ""
        width = tree_svg.length(content, kind)
        x, y = float(element.get("x", 0)), float(element.get("y", 0))
        left = x - width * {"start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor", "")]
        size = tree_svg._SIZES[kind]
        found.append((left, y - 0.75 * size, left + width, y + 0.2 * size, content))
    return found


def check(svg: str) -> None:
    width, height = (float(n) for n in re.findall(r"[\d.]+", svg.split("viewBox=")[1])[2:4])
    texts = lines(svg)
    assert texts
    for i, (left, top, right, bottom, content) in enumerate(texts):
        assert left >= 0 and right <= width and top >= 0 and bottom <= height, content
        for a, b, c, d, other in texts[:i]:
            assert right <= a or c <= left or bottom <= b or d <= top, (content, other)
    rects = [e for e in ET.fromstring(svg).iter(f"{SVG}rect") if e.get("class") != "card"]
    for rect in rects:
        x, y, w, h = (float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
        assert w > 0 and x >= 0 and x + w <= width + 0.01 and y + h <= height


@pytest.mark.parametrize(("tree", "k", "block"), TREES, ids=lambda v: str(v))
def test_contracts(tree: Tree, k: int, block: int) -> None:
    revealed = RevealedTree.from_contract(tree, k, block)
    svg = tree_svg.draw(revealed, title="linear, M = 1", note="PyTorch on a CPU & others")
    check(svg)
    assert len(svg) < 60_000
    assert revealed.id in svg and "&amp; others" in svg
    assert "prefers-color-scheme:dark" in svg and "http" not in svg.replace("http://www.w3.org", "")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(0, 10**6))
def test_irregular_trees(leaves: int, seed: int) -> None:
    check(tree_svg.draw(random_tree(leaves, seed), title="t" * 20))


@pytest.mark.parametrize(("tree", "k", "block"), TREES, ids=lambda v: str(v))
def test_who_adds_what(tree: Tree, k: int, block: int) -> None:
    owner, step = tree_panels.accumulators(RevealedTree.from_contract(tree, k, block))
    assert (owner >= 0).all() and len(np.unique(owner)) == owner.max() + 1
    if tree == Split(4):
        assert (owner == np.arange(k) // 1024).all()
        assert (step == np.arange(k) % 1024 // 16).all()
    if tree == Lanes(16):
        assert (owner == np.arange(k) % 16).all()


def test_long_text_is_wrapped() -> None:
    assert tree_svg.wrapped("one two three", "", 60) == ["one two", "three"]
    assert tree_svg.wrapped("a\nb", "", 60) == ["a", "b"]
    assert tree_svg.wrapped("unbreakable", "", 5) == ["unbreakable"]


def test_comparisons() -> None:
    rows = [
        (f"stock with a long name, M = {m}", RevealedTree.from_contract(tree, 4096, block))
        for m, (tree, block) in enumerate([(Chain(), 16), (Lanes(16), 1), (Segment(192), 1)])
    ]
    svg = tree_svg.compare(
        [*rows, ("random", random_tree(50, 1))], title="One product", note="here"
    )
    check(svg)
    assert svg.count("accumulator") and all(tree.id in svg for _, tree in rows)
