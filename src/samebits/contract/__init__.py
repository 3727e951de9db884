"""What decides my bits? Read this package, and nothing else.

A **contract** is pure data: a reduction tree, an arithmetic, and where results are rounded. It
alone decides the bits of an operation. Everything else in this project (tiles, threads, instruction
sets, kernels) is a *schedule*: it decides the speed, and is tested against a contract, bytes
against bytes.

Read in this order:

- `tree`        in which order the terms of a sum meet
- `arithmetic`  what one step does, on a CPU and on a tensor core
- `devices`     its numbers, chip by chip
- `numerics`, `block`, `functions`  the same, executable: NumPy, exactly rounded
- `linear`, `attention`, `rows`  the contracts, each with `evaluate`: the exact bits on a CPU
- `exact`       contracts without a tree: the exact sum, rounded once
- `portable`    the contracts that all devices share
- `key`         what a contract may depend on: there is no field for a batch size
- `text`, `render`  the canonical text (its hash is the contract's id) and drawings
"""

from __future__ import annotations

from samebits.contract.arithmetic import (
    CUDA_FMA,
    FORMATS,
    IEEE_FMA,
    Arithmetic,
    BlockFma,
    Format,
    IeeeFma,
)
from samebits.contract.attention import AttentionContract, hopper_attention
from samebits.contract.base import Contract
from samebits.contract.devices import hopper_mma
from samebits.contract.dot import dot, register_engine
from samebits.contract.exact.contract import ExactContract
from samebits.contract.key import ContractKey
from samebits.contract.linear import LinearContract
from samebits.contract.portable import (
    PORTABLE,
    portable_attention,
    portable_linear,
    portable_row,
)
from samebits.contract.rows import RowContract
from samebits.contract.text import parse, parse_arithmetic, parse_tree
from samebits.contract.tree import (
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
)

__all__ = [
    "CUDA_FMA", "FORMATS", "IEEE_FMA", "PORTABLE", "Add", "Arithmetic", "AttentionContract",
    "Balanced", "BlockFma", "Chain", "Contract", "ContractKey", "ExactContract", "Format",
    "IeeeFma", "Lanes", "LinearContract", "Node", "RowContract", "Run", "Segment", "Split", "Tree",
    "dot", "expand", "hopper_attention", "hopper_mma", "nested", "parse", "parse_arithmetic",
    "parse_tree", "portable_attention", "portable_linear", "portable_row", "register_engine",
]  # fmt: skip
