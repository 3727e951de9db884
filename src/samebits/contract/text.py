"""Reads contracts back from their canonical text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from samebits.contract.arithmetic import Arithmetic, BlockFma, IeeeFma
from samebits.contract.attention import AttentionContract
from samebits.contract.base import TEXT_VERSION, Contract
from samebits.contract.exact.contract import ExactContract
from samebits.contract.linear import LinearContract
from samebits.contract.rows import RowContract
from samebits.contract.tree import Balanced, Chain, Lanes, Segment, Split, Tree
from samebits.errors import ContractError

_KINDS: dict[str, type[Contract]] = {
    c.kind: c for c in (LinearContract, AttentionContract, RowContract, ExactContract)
}


def parse(text: str) -> Contract:
    """The contract that a canonical text describes: ``parse(c.text) == c``.

    Raises:
        ContractError: the text is not exactly what `Contract.text` writes.
    """
    head, *lines = text.splitlines() or [""]
    words = head.split(" ")
    if len(words) != 3 or words[:2] != ["samebits", str(TEXT_VERSION)] or words[2] not in _KINDS:
        raise ContractError(
            f"{head!r} is no contract: the first line is 'samebits {TEXT_VERSION} KIND' with KIND "
            f"one of {', '.join(_KINDS)}"
        )
    kind = _KINDS[words[2]]
    names = [field.name for field in fields(kind)]
    pairs = [line.partition(": ") for line in lines]
    if [name for name, _, _ in pairs] != names:
        raise ContractError(
            f"a {kind.kind} contract has the lines {', '.join(names)}, in this order"
        )
    contract = kind(
        **{
            field.name: _READ[str(field.type)](value)
            for field, (_, _, value) in zip(fields(kind), pairs, strict=True)
        }
    )
    if contract.text != text:
        raise ContractError("the text is not in canonical form: write it with Contract.text")
    return contract


def parse_tree(text: str) -> Tree:
    """A tree from its text, e.g. ``segment(1024) of lanes(16) folded pairwise``.

    Raises:
        ContractError: the text is not what `str` of a tree gives.
    """
    match = re.fullmatch(
        r"(chain|lanes|split|segment|balanced)(?:\((\d+)(?:, (neighbours))?\))?(.*)",
        text,
        re.DOTALL,
    )
    if match is None or (match[1] == "chain") != (match[2] is None):
        raise ContractError(
            f"{text!r} is no tree: use chain, lanes(16), split(4), segment(128), ..."
        )
    name, rest = match[1], match[4]
    size = int(match[2] or 0)
    pairwise = rest.endswith(" folded pairwise") and name == "segment"
    rest = rest.removesuffix(" folded pairwise") if pairwise else rest
    inner = rest.removeprefix(" of ")
    if inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1]
    leaf = parse_tree(inner) if rest else Chain()
    tree: Tree
    if name == "segment":
        tree = Segment(size, leaf, "pairwise" if pairwise else "ascending")
    elif name == "split":
        tree = Split(size, leaf)
    elif name == "balanced":
        tree = Balanced(size, leaf)
    else:
        tree = Lanes(size, "neighbours" if match[3] else "halves") if name == "lanes" else Chain()
    if str(tree) != text:
        raise ContractError(f"{text!r} is no tree in canonical form: did you mean {tree}?")
    return tree


def parse_arithmetic(text: str) -> Arithmetic:
    """An arithmetic from its text, e.g. ``ieee_fma(fp32, nan=0x7fc00000)``.

    Raises:
        ContractError: the text is not what `str` of an arithmetic gives.
    """
    found: Arithmetic = IeeeFma()
    if match := re.fullmatch(r"ieee_fma\(fp32, nan=0x([0-9a-f]{8})\)", text):
        found = IeeeFma(int(match[1], 16))
    elif match := re.fullmatch(
        r"(\w+)\((\w+), block=(\d+), fraction=(\d+), significand=(\d+), floor=(-?\d+), "
        r"nan=0x([0-9a-f]{8})\)",
        text,
    ):
        name, input, block, fraction, significand, floor, nan = match.groups()
        found = BlockFma(
            name, input, int(block), int(fraction), int(significand), int(floor), int(nan, 16)
        )
    if str(found) != text:
        raise ContractError(f"{text!r} is no arithmetic in canonical form")
    return found


def _read_words(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(text.split(", "))


_READ: dict[str, Callable[[str], Any]] = {
    "Tree": parse_tree,
    "Arithmetic": parse_arithmetic,
    "str": str,
    "int": int,
    "tuple[str, ...]": _read_words,
}
