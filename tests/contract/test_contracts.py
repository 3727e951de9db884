"""Contracts as values: canonical text, pinned ids, drawings."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.contract import (
    CUDA_FMA,
    IEEE_FMA,
    AttentionContract,
    Balanced,
    BlockFma,
    Chain,
    Contract,
    ContractKey,
    Lanes,
    LinearContract,
    RowContract,
    Segment,
    Split,
    hopper_attention,
    hopper_mma,
    parse,
    parse_arithmetic,
)
from samebits.contract.rows import FORMULAS, HOPPER_ROW_TREE, LEAF_FORMULAS
from samebits.errors import ContractError

LINEAR = [
    LinearContract(tree, arithmetic, kind, out, scaling, epilogue)
    for tree, arithmetic, kind, out, scaling, epilogue in [
        (Lanes(16), IEEE_FMA, "fp32", "fp32", "none", ("alpha", "bias")),
        (Lanes(16), IEEE_FMA, "bf16", "bf16", "none", ("alpha", "bias")),
        (Chain(), hopper_mma("bf16"), "bf16", "bf16", "none", ("alpha", "bias")),
        (Split(4), hopper_mma("bf16"), "bf16", "bf16", "none", ("alpha", "bias", "relu")),
        (Balanced(8), hopper_mma("fp16"), "fp16", "fp32", "none", ()),
        (Chain(), hopper_mma("tf32"), "tf32", "fp32", "none", ("bias",)),
        (Segment(128), hopper_mma("e4m3"), "e4m3", "bf16", "block", ("alpha", "bias")),
        (Chain(), CUDA_FMA, "fp32", "fp32", "none", ("alpha", "bias")),
    ]
]
OTHERS = [
    AttentionContract(IEEE_FMA, "fp32", "fp32"),
    AttentionContract(IEEE_FMA, "bf16", "bf16"),
    hopper_attention("bf16", leaf=1024),
    hopper_attention("fp16", kv="e4m3", exp2="hw"),
    *(RowContract(op, "bf16", "fp32") for op in FORMULAS),
    *(
        RowContract(op, "bf16", "fp32", HOPPER_ROW_TREE, CUDA_FMA, formula)
        for op, formula in LEAF_FORMULAS.items()
    ),
]
ALL: list[Contract] = [*LINEAR, *OTHERS]


@pytest.mark.parametrize("contract", ALL, ids=lambda c: c.id)
def test_text_parses_back(contract: Contract) -> None:
    again = parse(contract.text)
    assert again == contract
    assert hash(again) == hash(contract)
    assert again.id == contract.id


def test_ids_tell_contracts_apart() -> None:
    assert len({c.id for c in ALL}) == len(ALL)


def test_ids_are_stable() -> None:
    """An id names bits. If one changes here, the bits of a plan file's contract have changed."""
    assert [c.id for c in ALL[:14]] == [
        "53a17c001123", "882eb3d3648e", "571f518ecd52", "71e52db80383", "d160e948e8f2",
        "badbfc9367b5", "cff4ed2abf5c", "2ba5a1864a0b", "e1799e85134d", "6b1fa073af6d",
        "5a7addd1945d", "f0db5f452115", "ba31f8651da0", "92f690378ac2",
    ]  # fmt: skip


def test_text_of_one_contract() -> None:
    assert LINEAR[3].text == (
        "samebits 1 linear\n"
        "tree: split(4)\n"
        "arithmetic: hopper_mma(bf16, block=16, fraction=25, significand=24, floor=-133, "
        "nan=0x7fffffff)\n"
        "input: bf16\n"
        "output: bf16\n"
        "scaling: none\n"
        "epilogue: alpha, bias, relu\n"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("samebits 1", "samebits 2"), ("linear", "convolution"), ("split(4)", "split(5)"),
        ("split(4)", "split( 4)"), ("tree: ", "tree:"), ("input: bf16", "input: fp16"),
        ("output: bf16\n", ""), ("alpha, bias", "alpha,bias"), ("relu", "swish"),
        ("block=16", "block=016"), ("nan=0x7fffffff", "nan=0x7FFFFFFF"), ("relu\n", "relu"),
        ("relu\n", "relu\n\n"), ("scaling: none", "scaling: block"), ("input", "inputs"),
    ],
)  # fmt: skip
def test_what_is_not_canonical_is_refused(old: str, new: str) -> None:
    text = LINEAR[3].text
    assert old in text
    with pytest.raises(ContractError):
        parse(text.replace(old, new, 1))
    for junk in ("", "samebits 1 linear", "\n"):
        with pytest.raises(ContractError):
            parse(junk)


@given(
    st.from_regex(r"[a-z]\w{0,8}", fullmatch=True), st.sampled_from(["bf16", "e4m3"]),
    st.integers(1, 64), st.integers(14, 40), st.integers(2, 24), st.integers(-200, 0),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_arithmetic_round_trip(
    name: str, kind: str, block: int, fraction: int, significand: int, floor: int, nan: int
) -> None:
    a = BlockFma(name, kind, block, fraction, significand, floor, nan)
    assert parse_arithmetic(str(a)) == a


def test_parts_must_fit_together() -> None:
    bad = [
        lambda: LinearContract(Chain(), hopper_mma("bf16"), "fp16", "fp16"),
        lambda: LinearContract(Chain(), IEEE_FMA, "e4m3", "bf16"),
        lambda: LinearContract(Chain(), hopper_mma("e4m3"), "e4m3", "e4m3"),
        lambda: LinearContract(Chain(), hopper_mma("e4m3"), "e4m3", "bf16", "block"),
        lambda: LinearContract(Chain(), IEEE_FMA, "fp32", "fp32", "tensor"),
        lambda: LinearContract(Chain(), IEEE_FMA, "fp32", "fp32", epilogue=("gamma",)),
        lambda: AttentionContract(IEEE_FMA, "e4m3", "bf16"),
        lambda: AttentionContract(IEEE_FMA, "bf16", "bf16", exp2="libm"),
        lambda: AttentionContract(IEEE_FMA, "bf16", "bf16", leaf=0),
        lambda: AttentionContract(hopper_mma("fp16"), "bf16", "bf16"),
        lambda: RowContract("median", "fp32", "fp32"),
        lambda: RowContract("sum", "fp32", "fp32", formula="x"),
        lambda: RowContract("sum", "e4m3", "fp32"),
        lambda: RowContract("sum", "bf16", "bf16", arithmetic=hopper_mma("bf16")),
    ]
    for make in bad:
        with pytest.raises(ContractError):
            make()


def test_the_key_has_no_batch_field() -> None:
    assert list(ContractKey.__struct_fields__) == [
        "op", "dtype", "out_dtype", "device", "n", "k", "head_dim", "value_dim", "kv_dtype",
        "activation", "tree", "scaling",
    ]  # fmt: skip


def test_drawing_of_split() -> None:
    lines = LINEAR[3].render(length=4864).splitlines()
    assert lines[0] == f"contract {LINEAR[3].id}"
    assert lines[8:13] == [
        "split(4), k = 0 … 4863: 4 leaves, folded ascending",
        "",
        "     0 … 1279 ──┐",
        "  1280 … 2559 ──┴─┐",
        "  2560 … 3839 ────┴─┐",
    ]
    assert lines[13] == "  3840 … 4863 ──────┴─ sum"
    assert lines[-1] == "  +0 → 0 … 15 → 16 … 31 → … → 1264 … 1279 → sum"


def test_drawing_of_balanced_and_lanes() -> None:
    drawing = LINEAR[4].render(length=1024)
    assert (
        "     0 … 127 ──┐\n   128 … 255 ──┴─┐\n   256 … 383 ──┐ │\n   384 … 511 ──┴─┴─┐\n"
    ) in drawing
    assert "   k = 0, 16, … ──┐\n   k = 8, 24, … ──┴─┐\n" in LINEAR[0].render()


@pytest.mark.parametrize("contract", ALL, ids=lambda c: c.id)
@pytest.mark.parametrize("length", [None, 0, 1, 17, 5000, 70001])
def test_every_drawing_is_complete(contract: Contract, length: int | None) -> None:
    drawing = contract.render(length=length)
    assert contract.text.partition("\n")[2].strip() in drawing
    assert max(map(len, drawing.splitlines())) < 130
    svg = contract.render("svg", length=length)
    root = ElementTree.fromstring(svg)
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    for node in root.iter("{http://www.w3.org/2000/svg}rect"):
        box = [float(node.attrib.get(side, 0)) for side in ("x", "y", "width", "height")]
        assert min(box) >= 0
        assert box[0] + box[2] <= width + 0.01
        assert box[1] + box[3] <= height + 0.01
    assert contract.id in svg
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|<image", svg)


def test_other_formats_are_refused() -> None:
    with pytest.raises(ContractError, match="png"):
        LINEAR[0].render("png")
    with pytest.raises(ContractError, match="does not exist"):
        LINEAR[0].render(length=-1)
