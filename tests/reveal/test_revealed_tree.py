"""Trees as data: canonical, lossless when compressed, compared and named."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.contract import Split, hopper_mma, parse_tree
from samebits.contract.tree import expand, nested
from samebits.errors import RevealError
from samebits.reveal import Binary, Chain, Leaf, RevealedTree, Run
from samebits.reveal.structure import expand as operations

CONTRACTS = [
    "chain", "lanes(16)", "lanes(64, neighbours)", "split(4)", "balanced(8)", "segment(128)",
    "segment(256) folded pairwise", "balanced(4) of lanes(16)",
    "segment(1024) of lanes(16) folded pairwise",
    "segment(128) of lanes(8, neighbours) folded pairwise",
]  # fmt: skip


def random_tree(seed: int, leaves: int) -> RevealedTree:
    rng = random.Random(seed)
    nodes, children = list(range(leaves)), []
    while len(nodes) > 1:
        taken = rng.sample(nodes, min(len(nodes), rng.choice((2, 2, 2, 3, 5))))
        nodes = [n for n in nodes if n not in taken] + [leaves + len(children)]
        children.append(tuple(taken))
    return RevealedTree.of(leaves, children)


def nest(tree: RevealedTree) -> object:
    built: list[object] = list(range(tree.leaves))
    for operands in tree.children:
        built.append(tuple(built[c] for c in operands))
    return built[-1]


@settings(deadline=None, max_examples=300)
@given(seed=st.integers(0, 10**6), leaves=st.integers(1, 60))
def test_the_regular_form_loses_nothing(seed: int, leaves: int) -> None:
    tree = random_tree(seed, leaves)
    assert RevealedTree.from_structure(tree.structure, leaves) == tree
    assert RevealedTree.from_json(tree.to_json()) == tree


@settings(deadline=None, max_examples=300)
@given(seed=st.integers(0, 10**6), leaves=st.integers(2, 40))
def test_where_leaves_meet(seed: int, leaves: int) -> None:
    tree = random_tree(seed, leaves)
    below = [{i} for i in range(leaves)]
    for operands in tree.children:
        below.append(set().union(*(below[c] for c in operands)))
    for i in range(leaves):
        for j in range(i):
            smallest = min((b for b in below if {i, j} <= b), key=len)
            assert tree.meeting_size(i, j) == len(smallest)


@settings(deadline=None, max_examples=300)
@given(a=st.integers(0, 10**6), b=st.integers(0, 10**6), leaves=st.integers(1, 12))
def test_a_difference_is_one(a: int, b: int, leaves: int) -> None:
    one, two = random_tree(a, leaves), random_tree(b, leaves)
    found = one.first_difference(two)
    assert (found is None) == (one == two) == (one.id == two.id)
    if found is not None:
        assert one.meeting_size(*found.pair) == found.here != found.there
        assert two.meeting_size(*found.pair) == found.there


@pytest.mark.parametrize("text", CONTRACTS)
@pytest.mark.parametrize("leaves", [1, 2, 17, 128, 1000, 2048])
def test_contracts_expand_to_what_they_are(text: str, leaves: int) -> None:
    tree = parse_tree(text)
    for block in (1,) if "lanes" in text else (1, 8, 16):
        found = RevealedTree.from_contract(tree, leaves, block)
        if leaves <= 128:  # deeper tuples cannot be compared
            assert nest(found) == nested(expand(tree, leaves), block)
        again = [RevealedTree.from_contract(t, leaves, block) for t in found.contracts]
        assert again and all(t == found for t in again)


@pytest.mark.parametrize("text", CONTRACTS)
def test_a_long_regular_tree_is_short(text: str) -> None:
    tree = RevealedTree.from_contract(parse_tree(text), 16384)
    assert len(tree.text) < 60
    assert parse_tree(text) in tree.contracts


def test_the_regular_form_is_written_as_documented() -> None:
    split = RevealedTree.from_contract(Split(4), 4096, hopper_mma("bf16"))
    assert split.text == "((0*1024+1/16)*4+1024)"
    assert split.block == 16
    assert split.structure == Chain((Run(Chain((Run(Leaf(0), 1024, 1, 16),)), 4, 1024),))
    lanes = RevealedTree.from_contract(parse_tree("lanes(16)"), 4096)
    assert lanes.structure == Binary(Chain((Run(Leaf(0), 256, 16),)), (8, 4, 2, 1))
    assert len(operations(lanes.structure, 4096)) == 4095


def test_in_words() -> None:
    split = RevealedTree.from_contract(Split(4), 4096, 16)
    assert split.describe() == (
        "4 contiguous leaves of 1024, ascending fold; each: a chain of 1024 in 16-wide fused "
        "blocks (contract split(4))"
    )
    assert RevealedTree.from_contract(parse_tree("lanes(16)"), 4096).describe() == (
        "16 lanes, folded 8-4-2-1; each: a chain of 256 with stride 16 (contract lanes(16))"
    )
    backwards = RevealedTree.of(4, [(3, 2), (4, 1), (5, 0)])
    assert backwards.describe() == "a chain of 4, descending"


def test_what_is_no_tree_is_refused() -> None:
    for children in ([(0, 1)], [(0, 1), (0, 2)], [(0,), (1, 2)], [(0, 4), (3, 1)]):
        with pytest.raises(RevealError, match="no tree"):
            RevealedTree.of(3, children)
    with pytest.raises(RevealError, match="not 0123"):
        tree = RevealedTree.of(2, [(0, 1)])
        RevealedTree.from_data({**tree.to_data(), "id": "0123"})
    with pytest.raises(RevealError, match="describes no tree"):
        RevealedTree.from_data({"leaves": 2, "id": "", "structure": {"other": 1}})
