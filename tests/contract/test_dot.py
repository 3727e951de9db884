"""Dot products: the walk over a tree, and the C++ twin against the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits.contract import (
    IEEE_FMA,
    Arithmetic,
    Balanced,
    BlockFma,
    Chain,
    Lanes,
    Segment,
    Split,
    Tree,
    dot,
    hopper_mma,
)
from samebits.contract import numerics as nx
from samebits.contract.dot import engines, require_gradual_underflow
from samebits.contract.operands import widen
from samebits.engines.cpu.evaluate import cpu_leaf_dot, products_per_second
from samebits.errors import ContractError

TYPES = ["bf16", "fp16", "tf32", "e4m3", "e5m2"]
WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32}
SPECIAL = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1, -1])


def operands(
    kind: str, seed: int, m: int, n: int, k: int, special: float
) -> tuple[np.ndarray, np.ndarray]:
    """Random words of a type (any, or with exponents near 1), some replaced by special values."""
    rng = np.random.default_rng(seed)
    bits = {"fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16}.get(kind, 8)
    out = []
    for rows in (m, n):
        v = widen(rng.integers(0, 2**bits, (rows, k), dtype=np.uint64).astype(WORDS[bits]), kind)
        v = np.where(np.isfinite(v), v, np.float32(1))
        if rng.random() < 0.7:
            near = np.ldexp(rng.choice([-1, 1], v.shape) * rng.integers(4, 8, v.shape),
                            rng.integers(-6, 5, v.shape))  # fmt: skip
            v = near.astype(np.float32)
        out.append(np.where(rng.random(v.shape) < special, rng.choice(SPECIAL, v.shape), v))
    return out[0].astype(np.float32), out[1].astype(np.float32)


@given(
    st.sampled_from(TYPES), st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 11),
    st.integers(0, 130), st.sampled_from([0.0, 0.0, 0.01]),
)  # fmt: skip
def test_twin_of_the_tensor_core(
    kind: str, seed: int, m: int, n: int, k: int, special: float
) -> None:
    x, w = operands(kind, seed, m, n, k, special)
    a = hopper_mma(kind)
    want = dot(x, w, Chain(), a, engine="numpy")
    for threads in (1, 3):
        got = cpu_leaf_dot(x, w, Chain(), a, threads)
        assert (got.view(np.uint32) == want.view(np.uint32)).all()


@given(
    st.integers(1, 64), st.integers(20, 40), st.integers(2, 24), st.integers(-140, -100),
    st.integers(0, 2**32 - 1), st.integers(1, 90),
)  # fmt: skip
def test_twin_of_any_other_chip(
    block: int, fraction: int, significand: int, floor: int, seed: int, k: int
) -> None:
    x, w = operands("bf16", seed, 2, 3, k, 0.005)
    a = BlockFma("chip", "bf16", block, fraction, significand, floor)
    want = dot(x, w, Chain(), a, engine="numpy")
    assert (cpu_leaf_dot(x, w, Chain(), a).view(np.uint32) == want.view(np.uint32)).all()


@given(
    st.sampled_from(["fp32", "bf16", "fp16"]), st.sampled_from([1, 2, 4, 16, 32]),
    st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 11), st.integers(0, 130),
    st.sampled_from([0.0, 0.0, 0.01]),
)  # fmt: skip
def test_twin_of_ieee_fma(
    kind: str, width: int, seed: int, m: int, n: int, k: int, special: float
) -> None:
    x, w = operands(kind, seed, m, n, k, special)
    leaf = Chain() if width == 1 else Lanes(width)
    want = dot(x, w, leaf, IEEE_FMA, engine="numpy")
    assert (cpu_leaf_dot(x, w, leaf, IEEE_FMA).view(np.uint32) == want.view(np.uint32)).all()


@pytest.mark.parametrize("a", [IEEE_FMA, hopper_mma("bf16")], ids=str)
@pytest.mark.parametrize("engine", ["numpy", "cpu"])
def test_trees_are_walked_as_written(a: Arithmetic, engine: str) -> None:
    x, w = operands("bf16", 11, 3, 5, 1000, 0)

    def leaf(start: int, stop: int) -> np.ndarray:
        return dot(x[:, start:stop], w[:, start:stop], Chain(), a, engine)

    p = [leaf(i, min(i + 256, 1000)) for i in range(0, 1000, 256)]
    for tree, want in (
        (Split(4), ((p[0] + p[1]) + p[2]) + p[3]),
        (Balanced(4), (p[0] + p[1]) + (p[2] + p[3])),
        (Segment(256), ((p[0] + p[1]) + p[2]) + p[3]),
        (Segment(256, fold="pairwise"), (p[0] + p[1]) + (p[2] + p[3])),
        (Split(2, Segment(256)), (p[0] + p[1]) + (p[2] + p[3])),
    ):
        got = dot(x, w, tree, a, engine)
        assert (got.view(np.uint32) == want.astype(np.float32).view(np.uint32)).all(), tree


@pytest.mark.parametrize("a", [IEEE_FMA, hopper_mma("bf16")], ids=str)
def test_different_trees_give_different_bits(a: Arithmetic) -> None:
    """Otherwise none of this would be needed, and the tests above could not fail."""
    rng = np.random.default_rng(0)
    x, w = (nx.round_to(rng.standard_normal((16, 2048)), "bf16") for _ in range(2))
    trees: list[Tree] = [Chain(), Split(2), Split(4), Balanced(4), Segment(128)]
    if a == IEEE_FMA:
        trees.append(Lanes(16))
    seen = {dot(x, w, tree, a).tobytes() for tree in trees}
    assert len(seen) == len(trees)


def test_a_split_is_more_accurate_on_a_tensor_core() -> None:
    """Truncation biases a long chain; leaves restart it."""
    rng = np.random.default_rng(0)
    x, w = (nx.round_to(rng.random((8, 8192)), "bf16") for _ in range(2))
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    a = hopper_mma("bf16")
    errors = [np.abs(dot(x, w, tree, a) - exact).max() for tree in (Chain(), Segment(512))]
    assert errors[1] < errors[0] / 4


def test_lanes_and_k_zero() -> None:
    x, w = operands("fp32", 5, 2, 3, 77, 0)
    assert (dot(x, w, Lanes(16), IEEE_FMA).tobytes()) == nx.lanes16_dot(x, w).tobytes()
    for tree in (Chain(), Lanes(16), Split(4)):
        empty = dot(x[:, :0], w[:, :0], tree, IEEE_FMA)
        assert empty.shape == (2, 3)
        assert (empty.view(np.uint32) == 0).all()
    for engine in engines:
        with pytest.raises(ContractError, match="no meaning"):
            dot(x, w, Lanes(16), hopper_mma("tf32"), engine)
    with pytest.raises(ContractError, match="not registered"):
        dot(x, w, Chain(), IEEE_FMA, "abacus")


def test_flushed_subnormals_are_noticed() -> None:
    require_gradual_underflow()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        with pytest.raises(ContractError, match="flushes subnormals"):
            require_gradual_underflow()
        x = np.float32([[2.0**-100]])
        tiny = cpu_leaf_dot(x, np.float32([[2.0**-40]]), Chain(), IEEE_FMA)
    finally:
        torch.set_flush_denormal(False)
    assert tiny.view(np.uint32)[0, 0] == 1 << 9  # the twin keeps 2^-140 all the same


def test_speed_is_measured() -> None:
    assert products_per_second(seconds=0.0) > 1e6
