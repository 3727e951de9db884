"""The reduction tree of any kernel, seen from outside.

- `structure`  a tree's regular form: what is drawn, written and hashed
- `tree`       `RevealedTree`: which elements meet in which operation, as data
- `naming`     what a tree is called, and which contract has it
- `oracle`     the questions: which leaves lie below the operation in which two of them meet
- `triples`    orders that few questions suggest, and one a leaf proves
- `probe`      the answers put together: FPRev with fused operations and regularity
- `operand`, `positive`, `operations`  an operation as a sum of addends that we choose
- `values`     what tells an order of values from an arithmetic that is not known
- `arithmetic` what one operation does, each property by its own probe
- `replay`     a tree and an arithmetic, computed
- `front`      `reveal`
"""

from __future__ import annotations

from samebits.reveal.arithmetic import Finding
from samebits.reveal.front import Revealed, reveal
from samebits.reveal.operations import OPERATIONS, Request
from samebits.reveal.structure import Binary, Chain, Group, Leaf, Run, Series, Structure
from samebits.reveal.tree import Difference, RevealedTree

__all__ = [
    "OPERATIONS", "Binary", "Chain", "Difference", "Finding", "Group", "Leaf", "Request",
    "Revealed", "RevealedTree", "Run", "Series", "Structure", "reveal",
]  # fmt: skip
