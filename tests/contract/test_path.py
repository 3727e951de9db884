"""Digests of reduction paths: equal for equal paths, different for all others."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.contract import path
from samebits.contract.tree import CHAIN, Balanced, Lanes, Segment, Split, cut, expand
from samebits.engines.cpu import _cpu

SPLITS = [Split(2), Split(4), Split(8), Balanced(4), Balanced(8)]
SEGMENTS = [Segment(128), Segment(512), Segment(512, CHAIN, "pairwise")]
TREES = [CHAIN, Lanes(16), *SPLITS, *SEGMENTS, Segment(1024, Lanes(16), "pairwise")]


@pytest.mark.parametrize("k", [1024, 4096, 5000])
def test_digests_are_equal_where_the_paths_are(k: int) -> None:
    for a, b in itertools.combinations(TREES, 2):
        same = expand(a, k) == expand(b, k)
        assert (path.expected(a, k, 1) == path.expected(b, k, 1)) is same, (a, b)


def test_every_order_of_leaves_shows() -> None:
    words = [path.leaf(a, b) for a, b in cut(Split(4), 0, 4096)]
    digests = set()
    for order in itertools.permutations(words):
        digest = 7
        for word in order:
            digest = path.fold(digest, word)
        digests.add(digest)
    assert len(digests) == 24


def test_a_pairwise_fold_is_none_of_the_ascending_ones() -> None:
    assert path.expected(Balanced(4), 4096) != path.expected(Split(4), 4096)
    assert path.expected(Balanced(2), 4096) == path.expected(Split(2), 4096)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_edges_show(begin: int, end: int) -> None:
    word = path.leaf(begin, end)
    assert word not in (path.leaf(begin + 1, end), path.leaf(begin, end + 1))
    assert word != path.leaf(begin, end, 16)


@given(st.integers(0, 2**32 - 1), st.integers(1, 9000), st.sampled_from([256, 512, 1024]))
def test_attention_has_the_path_of_its_segments(start: int, keys: int, length: int) -> None:
    assert path.ascending(length, 0, keys, start) == path.expected(Segment(length), keys, start)


def test_a_window_cuts_the_first_leaf() -> None:
    expected = path.fold(path.fold(5, path.leaf(700, 1024)), path.leaf(1024, 1500))
    assert path.ascending(512, 700, 1500, 5) == expected


@pytest.mark.parametrize("lanes", [1, 16])
def test_the_engine_computes_the_same_digests(lanes: int) -> None:
    edges = [0, 512, 512, 1024, 1024, 1400]
    expected = 0x89ABCDEF
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        expected = path.fold(expected, path.leaf(begin, end, lanes))
    assert _cpu.path_digest(0x89ABCDEF, edges, lanes) == expected
