"""The tensor core's step: against an H200's outputs, and against a model made of fractions."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.contract import BlockFma, hopper_mma
from samebits.contract import numerics as nx
from samebits.contract.arithmetic import FORMATS, Format
from samebits.contract.block import block_chain, fused_block
from samebits.contract.operands import store, widen
from samebits.errors import ContractError

TYPES = ["bf16", "fp16", "tf32", "e4m3", "e5m2"]
WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32}
H200 = np.load(Path(__file__).with_name("h200.npz"))
SETS = sorted(name.removesuffix("_d") for name in H200.files if name.endswith("_d"))


@pytest.mark.parametrize("name", SETS)
def test_bits_of_an_h200(name: str) -> None:
    """Outputs of `wgmma` chains over K = 64 with an initial accumulator, recorded on an H200.

    spread, wide: random words; tiny: subnormal results; huge: overflow; special: zeros of both
    signs, subnormals, Inf and NaN; floor: products far below 2^-133 and no accumulator.
    """
    arithmetic = hopper_mma(name.partition("_")[0])
    x, w = (widen(H200[f"{name}_{side}"], arithmetic.input) for side in "xw")
    c = H200[f"{name}_c"].view(np.float32)
    d = store(block_chain(x, w, arithmetic, c), "fp32", arithmetic.nan, c)
    assert (np.asarray(d).view(np.uint32) == H200[f"{name}_d"]).all()


@pytest.mark.parametrize(
    "change",
    [
        {"block": 8}, {"block": 32}, {"fraction": 24}, {"fraction": 26}, {"significand": 23},
        {"floor": -132}, {"floor": -134},
    ],
    ids=str,
)  # fmt: skip
def test_the_recorded_bits_tell_other_parameters_apart(change: dict[str, int]) -> None:
    """Each number of `hopper_mma("bf16")` is needed: no neighbour reproduces the recording."""
    fields = {"block": 16, "fraction": 25, "significand": 24, "floor": -133} | change
    other = BlockFma("other", "bf16", **fields)
    different = 0
    for name in SETS:
        if name.startswith("bf16") and "special" not in name:
            x, w = (widen(H200[f"{name}_{side}"], "bf16") for side in "xw")
            d = block_chain(x, w, other, H200[f"{name}_c"].view(np.float32))
            different += int((d.view(np.uint32) != H200[f"{name}_d"]).sum())
    assert different > 0


# ---- a model that shares nothing with the implementation ----


def exponent(v: Fraction) -> int:
    """floor(log2 |v|) of v != 0."""
    n, d = abs(v.numerator), v.denominator
    e = n.bit_length() - d.bit_length()
    return e if Fraction(n, d) >= Fraction(2) ** e else e - 1


def toward_zero(v: Fraction, unit: Fraction) -> Fraction:
    n = abs(v) // unit
    return n * unit if v > 0 else -n * unit


def model(x: list[float], w: list[float], c: float, a: BlockFma) -> float:
    """One block, from exact fractions: finite operands of the format."""
    fmt = a.format

    def raw(v: float, f: Format) -> int:
        return max(exponent(Fraction(v)), f.min_exponent)

    terms = [
        (Fraction(p) * Fraction(q), raw(p, fmt) + raw(q, fmt))
        for p, q in zip(x, w, strict=True)
        if p and q
    ]
    if c:
        terms.append((Fraction(c), raw(c, FORMATS["fp32"])))
    top = max([e for _, e in terms] + [a.floor])
    unit = Fraction(2) ** (top - a.fraction)
    total = sum((toward_zero(v, unit) for v, _ in terms), Fraction(0))
    if total == 0:
        return 0.0
    last = Fraction(2) ** (max(exponent(total), -126) - (a.significand - 1))
    result = toward_zero(total, last)
    if abs(result) >= 2**128:
        return float("inf") if result > 0 else float("-inf")
    return float(result)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[BlockFma, np.ndarray, np.ndarray, np.ndarray]:
    """A block of finite operands of one type, exponents close together or anywhere."""
    a = hopper_mma(draw(st.sampled_from(TYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, a.block))
    word = rng.integers(0, 2**a.format.bits, (2, count), dtype=np.uint64)
    if draw(st.booleans()):  # near 1: keep sign and fraction, a narrow exponent
        one = {
            "bf16": 127 << 7,
            "fp16": 15 << 10,
            "tf32": 127 << 23,
            "e4m3": 7 << 3,
            "e5m2": 15 << 2,
        }
        f = 23 if a.input == "tf32" else a.format.fraction
        sign = np.uint64(1 << (a.format.bits - 1))
        low = np.uint64((1 << f) - 1)
        near = np.uint64(one[a.input]) + (rng.integers(0, 5, (2, count), dtype=np.uint64) << f)
        word = (word & (sign | low)) | near
    v = widen(word.astype(WORDS[a.format.bits]), a.input)
    v = np.where(np.isfinite(v), v, 1).astype(np.float32)
    v = np.where(rng.random(v.shape) < 0.1, np.float32(0), v)
    c = rng.integers(0, 2**32, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near_c = np.float32(rng.standard_normal())
    c = near_c if draw(st.booleans()) or not np.isfinite(c) else c
    return a, v[:1], v[1:], np.full((1, 1), c, np.float32)


@given(blocks())
def test_one_block_is_the_model_of_fractions(
    case: tuple[BlockFma, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    a, x, w, c = case
    got = fused_block(x, w, c, a)[0, 0]
    want = np.float32(model(x[0].tolist(), w[0].tolist(), float(c[0, 0]), a))
    assert got.view(np.uint32) == want.view(np.uint32)


@given(blocks(), st.integers(0, 2**32 - 1))
def test_inside_a_block_order_and_padding_do_not_matter(
    case: tuple[BlockFma, np.ndarray, np.ndarray, np.ndarray], seed: int
) -> None:
    a, x, w, c = case
    want = fused_block(x, w, c, a)
    order = np.random.default_rng(seed).permutation(x.shape[1])
    zeros = ((0, 0), (0, a.block - x.shape[1]))
    for xs, ws in ((x[:, order], w[:, order]), (np.pad(x, zeros), np.pad(w, zeros))):
        assert (fused_block(xs, ws, c, a).view(np.uint32) == want.view(np.uint32)).all()


@pytest.mark.parametrize("kind", TYPES)
def test_zero_padding_of_k_is_neutral_and_order_across_blocks_is_not(kind: str) -> None:
    a = hopper_mma(kind)
    rng = np.random.default_rng(3)
    k = 3 * a.block + 5
    x, w = (
        widen(rng.integers(0, 2**a.format.bits, (24, k)).astype(WORDS[a.format.bits]), kind)
        for _ in range(2)
    )
    x, w = (np.where(np.isfinite(v) & (np.abs(v) < 2**40), v, 1).astype(np.float32) for v in (x, w))
    want = block_chain(x, w, a).view(np.uint32)
    padded = block_chain(np.pad(x, ((0, 0), (0, 70))), np.pad(w, ((0, 0), (0, 70))), a)
    assert (padded.view(np.uint32) == want).all()
    assert (block_chain(x[:, ::-1], w[:, ::-1], a).view(np.uint32) != want).any()


@pytest.mark.parametrize(
    ("x", "w", "c", "want"),
    [
        ([np.inf], [0.0], 0.0, np.nan),
        ([np.inf], [1.0], 0.0, np.inf),
        ([np.inf, 1.0], [-1.0, 1.0], 5.0, -np.inf),
        ([np.inf, np.inf], [1.0, -1.0], 0.0, np.nan),
        ([1.0], [1.0], np.inf, np.inf),
        ([np.inf], [1.0], -np.inf, np.nan),
        ([np.nan], [0.0], 0.0, np.nan),
        ([1.0], [1.0], np.nan, np.nan),
        ([-0.0], [1.0], -0.0, 0.0),  # a zero sum is +0
        ([1.0, -1.0], [1.0, 1.0], -0.0, 0.0),
        ([2.0**127, 2.0**127], [1.0, 1.0], 0.0, np.inf),
        ([2.0**127, 2.0**100], [1.0, 1.0], 0.0, 2.0**127),
        ([2.0**-126], [2.0**-7], 0.0, 2.0**-133),  # a subnormal result
        ([2.0**-75], [2.0**-75], 0.0, 0.0),  # below the smallest subnormal
    ],
)
def test_what_ieee_leaves_to_the_chip(
    x: list[float], w: list[float], c: float, want: float
) -> None:
    d = fused_block(np.float32([x]), np.float32([w]), np.float32([[c]]), hopper_mma("bf16"))
    assert d.view(np.uint32)[0, 0] == np.float32(want).view(np.uint32)


def test_truncation_is_toward_zero_and_products_are_not_renormalised() -> None:
    a = hopper_mma("bf16")
    one = np.float32([[1.0]])
    tiny = np.float32([[2.0**-24]])  # within the grid of 25 bits, below fp32's last place
    for sign in (np.float32(1), np.float32(-1)):
        d = fused_block(sign * tiny, one, sign * one, a)
        assert d[0, 0] == sign  # rounded to nearest, ties to even, this would be the same ...
        d = fused_block(sign * tiny * np.float32(1.5), one, sign * one, a)
        assert d[0, 0] == sign  # ... and this would not
    # 1.5 * 1.5 = 2.25 counts as exponent 0, so 2^-25 is on the grid; as exponent 1 it would not be.
    x, w = np.float32([[1.5, -1.5, 2.0**-25]]), np.float32([[1.5, 1.5, 1.0]])
    assert fused_block(x, w, np.float32([[0]]), a)[0, 0] == np.float32(2.0**-25)


def test_parameters_are_checked() -> None:
    with pytest.raises(ContractError, match="use one of bf16"):
        hopper_mma("fp32")
    with pytest.raises(ContractError, match="fraction bits"):
        BlockFma("chip", "fp16", block=4, fraction=19)
    with pytest.raises(ContractError, match="significant bits"):
        BlockFma("chip", "bf16", block=4, fraction=23, significand=25)
    with pytest.raises(ContractError, match="not known"):
        BlockFma("chip", "fp4", block=4, fraction=23)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32", "e4m3"])
def test_a_chain_goes_on_from_an_accumulator(dtype: str) -> None:
    from samebits.contract import Chain
    from samebits.engines.cpu.evaluate import cpu_leaf_dot

    rng = np.random.default_rng(5)
    stored = {"tf32": "bf16", "e4m3": "fp16"}.get(dtype, dtype)
    x, w = (nx.round_to(rng.integers(-15, 16, (6, 96)) / 8, stored) for _ in range(2))
    arithmetic = hopper_mma(dtype)
    whole = cpu_leaf_dot(x, w, Chain(), arithmetic)
    first = cpu_leaf_dot(x[:, :64], w[:, :64], Chain(), arithmetic)
    second = cpu_leaf_dot(x[:, 64:], w[:, 64:], Chain(), arithmetic, acc=first)
    assert second.tobytes() == whole.tobytes()
    odd = np.array([[1e-44, -1e-40, np.inf, 3e38, -0.0, np.nan]], np.float32).repeat(6, 0)
    twin = block_chain(x, w, arithmetic, odd)
    assert cpu_leaf_dot(x, w, Chain(), arithmetic, acc=odd).tobytes() == twin.tobytes()
