"""Trees: where leaves end, in which order they meet, and the explicit form."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.contract import (
    Add,
    Balanced,
    Chain,
    Lanes,
    Node,
    Run,
    Segment,
    Split,
    Tree,
    expand,
    nested,
    parse_tree,
)
from samebits.contract.tree import cut, fold, runs
from samebits.errors import ContractError

powers = st.sampled_from([2, 4, 8, 16])
trees = st.recursive(
    st.one_of(st.just(Chain()), powers.map(Lanes)),
    lambda leaf: st.one_of(
        st.builds(Segment, st.integers(1, 2000), leaf, st.sampled_from(["ascending", "pairwise"])),
        st.builds(Split, powers, leaf),
        st.builds(Balanced, powers, leaf),
    ),
    max_leaves=4,
)


def shape(order: str, n: int) -> str:
    """A fold of n leaves, written out."""
    return fold([f"p{i}" for i in range(n)], order, lambda a, b: f"({a}+{b})")  # type: ignore[arg-type]


def test_folds_written_out() -> None:
    assert shape("ascending", 4) == "(((p0+p1)+p2)+p3)"
    assert shape("pairwise", 4) == "((p0+p1)+(p2+p3))"
    assert shape("pairwise", 7) == "(((p0+p1)+(p2+p3))+((p4+p5)+p6))"
    assert shape("ascending", 1) == shape("pairwise", 1) == "p0"


@given(st.integers(1, 200))
def test_pairwise_is_the_binary_counter(n: int) -> None:
    """Leaf by leaf: a finished leaf carries up while its level is occupied; the rest at the end."""
    levels: list[str | None] = []
    for i in range(n):
        carry, level = f"p{i}", 0
        while level < len(levels) and levels[level] is not None:
            carry, levels[level] = f"({levels[level]}+{carry})", None
            level += 1
        levels[level : level + 1] = [carry]
    acc = None
    for part in levels:
        if part is not None:
            acc = part if acc is None else f"({part}+{acc})"
    assert shape("pairwise", n) == acc


@pytest.mark.parametrize(
    ("parts", "k", "edges"),
    [
        (4, 4096, [0, 1024, 2048, 3072, 4096]),
        (4, 4864, [0, 1280, 2560, 3840, 4864]),  # 38 units of 128: 10, 10, 10, 8
        (4, 7168, [0, 1792, 3584, 5376, 7168]),
        (4, 1000, [0, 256, 512, 768, 1000]),
        (4, 130, [0, 128, 130]),  # fewer leaves than parts
        (8, 1, [0, 1]),
        (2, 0, [0, 0]),
    ],
)
def test_edges_of_split_and_balanced(parts: int, k: int, edges: list[int]) -> None:
    want = list(pairwise(edges))
    assert cut(Split(parts), 0, k) == cut(Balanced(parts), 0, k) == want


@given(st.sampled_from([2, 4, 8]), st.integers(1, 40000))
def test_edges_are_multiples_of_128(parts: int, k: int) -> None:
    leaves = cut(Split(parts), 0, k)
    assert len(leaves) <= parts
    assert all(start % 128 == 0 for start, _ in leaves)
    assert [start for start, _ in leaves[1:]] == [stop for _, stop in leaves[:-1]]
    assert leaves[-1][1] == k
    assert all(a < b for a, b in leaves)


def elements(node: Node) -> list[int]:
    return [k for run in runs(node) for k in run.indices]


@given(trees, st.integers(0, 5000))
def test_every_element_is_in_exactly_one_run(tree: Tree, k: int) -> None:
    assert sorted(elements(expand(tree, k))) == list(range(k))


@given(trees)
def test_text_round_trip(tree: Tree) -> None:
    assert parse_tree(str(tree)) == tree


def test_texts() -> None:
    rows = Segment(1024, Lanes(16), "pairwise")
    assert str(rows) == "segment(1024) of lanes(16) folded pairwise"
    assert str(Split(4, rows)) == "split(4) of (segment(1024) of lanes(16) folded pairwise)"
    assert str(Split(2, Segment(64))) == "split(2) of (segment(64))"


@pytest.mark.parametrize(
    "text",
    [
        "", "chain(2)", "split", "split(3)", "split(04)", "split(4) of chain", "lanes(16) of chain",
        "balanced(4) folded pairwise", "segment(0)", "segment(8) of segment(4)", "split(4) ",
        "segment(8) folded ascending", "tree(4)", "split(4) of (segment(4)", "split(4)\n",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ContractError):
        parse_tree(text)


def test_expand_of_small_trees() -> None:
    assert expand(Chain(), 5) == Run(0, 5, 1, 5)
    assert expand(Lanes(2), 5) == Add(
        Run(0, 5, 2, 3), Run(1, 5, 2, 3)
    )  # lane 1: one zero of padding
    assert expand(Segment(2), 5) == Add(Add(Run(0, 2, 1, 2), Run(2, 4, 1, 2)), Run(4, 5, 1, 1))
    four = [Run(i, 16, 4, 4) for i in range(4)]
    assert expand(Lanes(4), 16) == Add(Add(four[0], four[2]), Add(four[1], four[3]))
    with pytest.raises(ContractError, match="does not exist"):
        expand(Chain(), -1)


def test_nested_form_of_a_probe() -> None:
    assert nested(expand(Chain(), 4)) == (((0, 1), 2), 3)
    assert nested(expand(Chain(), 5), block=2) == (((0, 1), 2, 3), 4)
    assert nested(expand(Lanes(4), 6)) == (((0, 4), 2), ((1, 5), 3))
    assert nested(expand(Lanes(16), 3)) == ((0, 2), 1)  # 0 + 8 and 4 first, then 2, then 1
    assert nested(expand(Segment(2), 4), block=16) == ((0, 1), (2, 3))
    assert nested(expand(Chain(), 0)) is None


@given(st.sampled_from([2, 4, 8]), st.sampled_from([2, 4, 8, 16]), st.integers(1, 6))
def test_a_shard_of_balanced_is_a_subtree(ranks: int, parts: int, units: int) -> None:
    """Each rank's share of K, summed alone, is a node of the whole tree: TP cannot change bits."""
    k = parts * 128 * units
    if ranks > parts:
        return
    share = k // ranks

    def shift(node: Node, by: int) -> Node:
        if isinstance(node, Add):
            return Add(shift(node.left, by), shift(node.right, by))
        return Run(node.start + by, node.stop + by, node.step, node.steps)

    local = expand(Balanced(parts // ranks), share) if parts > ranks else expand(Chain(), share)
    sums = [shift(local, r * share) for r in range(ranks)]
    assert fold(sums, "pairwise", Add) == expand(Balanced(parts), k)


@pytest.mark.parametrize("make", [Lanes, Split, Balanced])
@pytest.mark.parametrize("n", [0, 1, 3, 12, -4])
def test_sizes_are_powers_of_two(make: type, n: int) -> None:
    with pytest.raises(ContractError, match="power of two"):
        make(n)


def test_trees_are_values() -> None:
    assert {Split(4), Split(4), Split(8)} == {Split(4), Split(8)}
    with pytest.raises(AttributeError):
        Split(4).parts = 8  # type: ignore[misc]
    with pytest.raises(ContractError, match="fold"):
        Segment(4, fold="random")  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="at least one"):
        Segment(0)
