"""Known trees are recovered: random ones, and every contract's from its evaluator."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_revealed_tree import CONTRACTS, random_tree

from samebits.contract import IEEE_FMA, LinearContract, hopper_mma, parse_tree
from samebits.errors import RevealError
from samebits.reveal import RevealedTree, reveal
from samebits.reveal.oracle import PositiveOracle, SignedOracle
from samebits.reveal.probe import reconstruct
from samebits.reveal.tree import Integers


def counting(tree: RevealedTree) -> Callable[..., Integers]:
    """The exact answers of a tree: units outside of where i and j meet."""
    ordered, start = tree.spans

    def count(i: Integers, j: Integers, units: np.ndarray, which: Integers) -> Integers:
        chosen = units[which]
        rows = np.arange(len(i))
        chosen[rows, i] = chosen[rows, j] = False
        node = tree.meeting(i, j)
        upto = np.concatenate([np.zeros((len(i), 1), int), chosen[:, ordered].cumsum(1)], 1)
        inside = upto[rows, start[node] + tree.sizes[node]] - upto[rows, start[node]]
        return chosen.sum(1) - inside

    return count


def meeting_first(tree: RevealedTree) -> Callable[..., np.ndarray]:
    """The exact answers of a tree: whether j and k meet before i."""
    ordered, start = tree.spans
    place = np.argsort(ordered)

    def together(i: Integers, j: Integers, k: Integers) -> np.ndarray:
        node = tree.meeting(j, k)
        return (place[i] < start[node]) | (place[i] >= start[node] + tree.sizes[node])

    return together


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    leaves=st.integers(1, 90),
    capacity=st.sampled_from([4, 16, 1 << 20]),
)
def test_random_trees_from_counts(seed: int, leaves: int, capacity: int) -> None:
    tree = random_tree(seed, leaves)
    assert reconstruct(SignedOracle(leaves, counting(tree), capacity)) == tree


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**6), leaves=st.integers(1, 90))
def test_random_trees_from_triples(seed: int, leaves: int) -> None:
    tree = random_tree(seed, leaves)
    assert reconstruct(PositiveOracle(leaves, meeting_first(tree))) == tree


def test_copies_that_are_none_are_seen() -> None:
    """Pairs and triples from a queue: many groups are shifted copies, but for a leaf or two."""
    for seed in range(4, 400, 26):
        rng, live, nodes = np.random.default_rng(seed), list(range(129)), []
        while len(live) > 1:
            fan = int(rng.integers(2, 4))
            nodes.append(tuple(live[:fan]))
            live = [*live[fan:], 128 + len(nodes)]
        tree = RevealedTree.of(129, nodes)
        assert reconstruct(SignedOracle(129, counting(tree), 1 << 20)) == tree


@pytest.mark.parametrize("capacity", [256, 1 << 20])
@pytest.mark.parametrize("leaves", [1024, 3000])
@pytest.mark.parametrize("text", CONTRACTS)
def test_regular_trees_take_fewer_than_3_probes_a_leaf(
    text: str, leaves: int, capacity: int
) -> None:
    for block in (1,) if "lanes" in text else (1, 16, 32):
        tree = RevealedTree.from_contract(parse_tree(text), leaves, block)
        oracle = SignedOracle(leaves, counting(tree), capacity)
        assert reconstruct(oracle) == tree
        assert oracle.probes < 3 * leaves


@pytest.mark.parametrize("leaves", [1024, 3000])
@pytest.mark.parametrize("text", CONTRACTS)
def test_positive_terms_of_regular_trees_take_fewer_than_3_probes_a_leaf(
    text: str, leaves: int
) -> None:
    tree = RevealedTree.from_contract(parse_tree(text), leaves)
    oracle = PositiveOracle(leaves, meeting_first(tree))
    assert reconstruct(oracle) == tree
    assert oracle.probes < 3 * leaves


def in_turn(sizes: tuple[int, ...], times: int) -> RevealedTree:
    """One accumulator that takes chains of these sizes, all of them `times` times."""
    n = sum(sizes) * times
    nodes: list[tuple[int, int]] = []

    def join(a: int, b: int) -> int:
        nodes.append((a, b))
        return n + len(nodes) - 1

    ends = np.cumsum(sizes * times)
    parts = [
        reduce(join, range(end - size, end)) for end, size in zip(ends, sizes * times, strict=True)
    ]
    reduce(join, parts)
    return RevealedTree.of(n, nodes)


@pytest.mark.parametrize("capacity", [3, 64])
@pytest.mark.parametrize(
    ("sizes", "times"), [((96, 96, 64), 8), ((4,) * 16 + (48,), 12), ((32,), 48)]
)
def test_parts_that_repeat_take_fewer_than_3_probes_a_leaf(
    sizes: tuple[int, ...], times: int, capacity: int
) -> None:
    """Also where one result counts few units, as averages in fp16 do."""
    tree = in_turn(sizes, times)
    oracle = SignedOracle(tree.leaves, counting(tree), capacity)
    assert reconstruct(oracle) == tree
    assert oracle.probes < 3 * tree.leaves


def test_a_part_that_does_not_repeat_is_seen() -> None:
    """What is suggested for parts that repeat is proved: one of them is cut elsewhere."""
    for cut in range(1, 7):
        sizes = (64,) * (cut + 3) + (63, 65) + (64,) * 20
        tree = in_turn(sizes, 1)
        for capacity in (3, 64):
            assert reconstruct(SignedOracle(tree.leaves, counting(tree), capacity)) == tree


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("capacity", [64, 1 << 20])
@pytest.mark.parametrize("text", ["lanes(16)", "split(4)", "segment(512) of lanes(16)"])
def test_a_swap_inside_a_copied_chain_is_seen(text: str, capacity: int, positive: bool) -> None:
    """Two neighbours of a chain that is the copy of another have changed places."""
    tree = RevealedTree.from_contract(parse_tree(text), 1024)
    places = range(40, 1000, 96) if text == "split(4)" else range(600, 1000, 59)
    for place in places:
        ordered, _ = tree.spans
        at = int(np.flatnonzero(ordered == place)[0])
        if at % (1024 // 16) > 60:
            continue  # at the end of a chain
        names = np.arange(1024)
        names[[ordered[at], ordered[at + 1]]] = names[[ordered[at + 1], ordered[at]]]
        swapped = RevealedTree.of(
            1024, [tuple(int(names[c]) if c < 1024 else c for c in o) for o in tree.children]
        )
        oracle: SignedOracle | PositiveOracle = (
            PositiveOracle(1024, meeting_first(swapped))
            if positive
            else SignedOracle(1024, counting(swapped), capacity)
        )
        assert reconstruct(oracle) == swapped


@pytest.mark.parametrize("swap", [(6, 14), (0, 8), (5, 6)])
@pytest.mark.parametrize(("block", "count"), [(6, 4), (8, 5), (4, 9)])
def test_a_swap_between_fused_blocks_of_one_copy_is_seen(
    block: int, count: int, swap: tuple[int, int]
) -> None:
    """Two leaves of the last segment have changed places, in one block or between two."""
    n = 16 * count
    names = np.arange(n)
    names[[n - 16 + swap[0], n - 16 + swap[1]]] = n - 16 + swap[1], n - 16 + swap[0]
    straight = RevealedTree.from_contract(parse_tree("segment(16)"), n, block)
    tree = RevealedTree.of(
        n, [[int(names[c]) if c < n else c for c in o] for o in straight.children]
    )
    for capacity in (32, 1 << 20):
        assert reconstruct(SignedOracle(n, counting(tree), capacity)) == tree
    assert reconstruct(PositiveOracle(n, meeting_first(tree))) == tree


@pytest.mark.parametrize("order", ["descending", "inward"])
def test_chains_in_other_orders(order: str) -> None:
    n = 2000
    taken = list(range(n))[::-1]
    if order == "inward":
        taken = [x for pair in zip(range(n // 2), range(n)[::-1], strict=False) for x in pair][::-1]
    children = [(taken[0], taken[1]), *((n + t, taken[t + 2]) for t in range(n - 2))]
    tree = RevealedTree.of(n, children)
    assert reconstruct(SignedOracle(n, counting(tree), 1 << 20)) == tree


def test_answers_of_two_trees_are_none() -> None:
    rng = np.random.default_rng(0)
    one, two = (
        counting(RevealedTree.from_contract(parse_tree(t), 300)) for t in ("chain", "split(2)")
    )

    def either(*question: np.ndarray) -> Integers:
        return np.where(rng.random(len(question[0])) < 0.5, one(*question), two(*question))

    with pytest.raises(RevealError, match=r"fit no tree|contradict"):
        reconstruct(SignedOracle(300, either, 1 << 20))


ARITHMETIC = {
    "fp32": IEEE_FMA, "bf16": hopper_mma("bf16"), "fp16": hopper_mma("fp16"),
    "tf32": hopper_mma("tf32"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ARITHMETIC)
@pytest.mark.parametrize("text", [t for t in CONTRACTS if "lanes" not in t])
def test_contracts_from_their_evaluators(text: str, dtype: str) -> None:
    contract = LinearContract(parse_tree(text), ARITHMETIC[dtype], dtype, "fp32")
    found = reveal(contract.evaluate, op="linear", m=2, n=64, k=600, dtype=dtype)
    assert found.tree == RevealedTree.from_contract(contract.tree, 600, contract.arithmetic)
    assert found.probes < 3 * 600
    assert found.explained
    assert contract.tree in found.tree.contracts or text in ("split(4)", "balanced(8)")


@pytest.mark.parametrize("text", ["lanes(16)", "balanced(4) of lanes(16)"])
def test_lanes_from_their_evaluators(text: str) -> None:
    contract = LinearContract(parse_tree(text), IEEE_FMA, "bf16", "bf16")

    def rounded(x: object, w: object) -> object:
        return contract.evaluate(x, w, out_dtype="bf16")

    found = reveal(rounded, op="linear", m=1, n=64, k=600, dtype="bf16")
    assert found.tree == RevealedTree.from_contract(contract.tree, 600)
    assert found.explained
