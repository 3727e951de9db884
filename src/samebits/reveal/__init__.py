"""The reduction tree of any kernel, seen from outside.

- `structure`  a tree's regular form: what is drawn, written and hashed
- `tree`       `RevealedTree`: which elements meet in which operation, as data
- `naming`     what a tree is called, and which contract has it
"""

from __future__ import annotations

from samebits.reveal.structure import Binary, Chain, Group, Leaf, Run, Structure
from samebits.reveal.tree import Difference, RevealedTree

__all__ = [
    "Binary", "Chain", "Difference", "Group", "Leaf", "RevealedTree", "Run", "Structure",
]  # fmt: skip
