"""A revealed tree: which elements meet in which operation, as data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from samebits.contract import tree as contract_tree
from samebits.contract.arithmetic import Arithmetic
from samebits.errors import RevealError
from samebits.reveal import naming
from samebits.reveal import structure as regular
from samebits.reveal.structure import Structure

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Difference:
    """The first place where two trees part.

    Attributes:
        pair: two leaves that meet in operations of different size.
        here: leaves below the operation in which they meet in the one tree.
        there: in the other.
    """

    pair: tuple[int, int]
    here: int
    there: int

    def __str__(self) -> str:
        i, j = self.pair
        return f"{i} and {j} meet in a sum of {self.here} leaves here, of {self.there} there"


@dataclass(frozen=True)
class RevealedTree:
    """A reduction tree over `leaves` elements; compared, and hashed, by value.

    Nodes are numbers: 0 ... leaves - 1 are the leaves, leaves + t is the operation whose operands
    are `children[t]`, the last one is the root. The form is canonical: operands are ordered by
    their smallest leaf (addition commutes), nodes are in post-order. An operation of more than two
    operands is a fused block: it aligns and adds them all at once, so they have no order.

    Make one with `of`, `from_contract` or `from_json`.

    Attributes:
        leaves: number of elements, at least 1.
        children: operands of every operation.
    """

    leaves: int
    children: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, leaves: int, children: Sequence[Iterable[int]]) -> RevealedTree:
        """The canonical tree with these operations: operands are leaves or earlier nodes.

        Raises:
            RevealError: the operations do not form one tree over all leaves.
        """
        given = [tuple(operands) for operands in children]
        total = leaves + len(given)
        used = [c for operands in given for c in operands]
        if (
            leaves < 1
            or sorted(used) != list(range(total - 1))
            or any(len(o) < 2 or max(o) >= leaves + t for t, o in enumerate(given))
        ):
            raise RevealError(
                f"{len(given)} operations over {leaves} leaves are no tree: every leaf and every "
                "operation but the last is an operand once, operations have two or more"
            )
        least = list(range(leaves))
        for t, operands in enumerate(given):
            given[t] = tuple(sorted(operands, key=least.__getitem__))
            least.append(min(least[c] for c in operands))
        number: dict[int, int] = {}
        ordered: list[tuple[int, ...]] = []
        stack = [(total - 1, False)]
        while stack:
            node, done = stack.pop()
            if node < leaves:
                number[node] = node
            elif done:
                number[node] = leaves + len(ordered)
                ordered.append(tuple(number[c] for c in given[node - leaves]))
            else:
                stack.append((node, True))
                stack += [(c, False) for c in reversed(given[node - leaves])]
        return cls(leaves, tuple(ordered))

    @classmethod
    def from_structure(cls, part: Structure, leaves: int) -> RevealedTree:
        """The tree that a regular form describes. Errors as `of`."""
        return cls.of(leaves, regular.expand(part, leaves))

    @classmethod
    def from_contract(
        cls, tree: contract_tree.Tree, leaves: int, arithmetic: Arithmetic | int = 1
    ) -> RevealedTree:
        """What a kernel with a contract's tree and arithmetic shows when it is probed.

        Args:
            tree: the contract's tree.
            leaves: elements along the reduced axis, at least 1.
            arithmetic: the contract's arithmetic, or the products that one step takes.
        """
        block = arithmetic if isinstance(arithmetic, int) else arithmetic.block
        children: list[tuple[int, ...]] = []

        def join(operands: list[int]) -> int:
            if len(operands) > 1:
                children.append(tuple(operands))
                return leaves + len(children) - 1
            return operands[0]

        # None: an empty lane, whose +0 leaves no trace.
        def run(kind: contract_tree.Leaf, start: int, stop: int) -> int | None:
            lanes = [chain(r) for r in _lane_runs(kind, start, stop)]
            while len(lanes) > 1:
                half = len(lanes) // 2
                neighbours = isinstance(kind, contract_tree.Lanes) and kind.fold == "neighbours"
                pairs = (
                    zip(lanes[::2], lanes[1::2], strict=True)
                    if neighbours
                    else zip(lanes[:half], lanes[half:], strict=True)
                )
                lanes = [add(a, b) for a, b in pairs]
            return lanes[0]

        def chain(indices: range) -> int | None:
            acc: list[int] = []
            for at in range(0, len(indices), block):
                acc = [join([*acc, *indices[at : at + block]])]
            return acc[0] if acc else None

        def add(a: int | None, b: int | None) -> int | None:
            return join([a, b]) if a is not None and b is not None else a if b is None else b

        contract_tree.reduce(tree, 0, leaves, run, add)
        return cls.of(leaves, children)

    def expands(self, tree: contract_tree.Tree, arithmetic: Arithmetic | int = 1) -> bool:
        """Whether a contract's tree, over as many leaves, is this one."""
        return RevealedTree.from_contract(tree, self.leaves, arithmetic) == self

    # ---- written down --------------------------------------------------------------------------

    @cached_property
    def structure(self) -> Structure:
        """The regular form: repetition written once; see `samebits.reveal.structure`."""
        return regular.compress(self.leaves, self.children)

    @cached_property
    def text(self) -> str:
        """The canonical text of the regular form; equal texts, equal trees."""
        return regular.text(self.structure)

    @cached_property
    def id(self) -> str:
        """12 hexadecimal digits of the SHA-256 of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"tree {self.id} over {self.leaves}: {self.text}"

    def to_data(self) -> dict[str, Any]:
        """`{"leaves": n, "id": ..., "structure": ...}`, plain data for JSON."""
        return {
            "leaves": self.leaves,
            "id": self.id,
            "structure": regular.to_data(self.structure),
        }

    def to_json(self) -> str:
        """`to_data` as JSON."""
        return json.dumps(self.to_data(), sort_keys=True)

    @classmethod
    def from_data(cls, data: Any) -> RevealedTree:
        """The inverse of `to_data`.

        Raises:
            RevealError: the data is no tree, or its id is another one's.
        """
        try:
            leaves, part, id = int(data["leaves"]), data["structure"], data["id"]
        except (KeyError, TypeError, ValueError) as error:
            raise RevealError(f"no tree in this data: {error}") from error
        found = cls.from_structure(regular.from_data(part), leaves)
        if found.id != id:
            raise RevealError(f"the tree in this data is {found.id}, not {id}")
        return found

    @classmethod
    def from_json(cls, text: str) -> RevealedTree:
        """The inverse of `to_json`. Errors as `from_data`."""
        return cls.from_data(json.loads(text))

    # ---- what is asked of it -------------------------------------------------------------------

    @cached_property
    def sizes(self) -> Integers:
        """Leaves below every node, [leaves + operations]."""
        size = [1] * self.leaves
        for operands in self.children:
            size.append(sum(size[c] for c in operands))
        return np.array(size)

    @cached_property
    def parents(self) -> Integers:
        """The operation that takes every node; the root is its own."""
        total = self.leaves + len(self.children)
        parents = np.full(total, total - 1)
        for t, operands in enumerate(self.children):
            parents[list(operands)] = self.leaves + t
        return parents

    @cached_property
    def depths(self) -> Integers:
        """Operations between every node and the root."""
        parents = self.parents.tolist()
        depth = [0] * len(parents)
        for node in range(len(parents) - 2, -1, -1):
            depth[node] = depth[parents[node]] + 1
        return np.array(depth)

    @cached_property
    def _jumps(self) -> list[Integers]:
        jumps = [self.parents]
        for _ in range(int(self.depths.max()).bit_length()):
            jumps.append(jumps[-1][jumps[-1]])
        return jumps

    def meeting(self, i: npt.ArrayLike, j: npt.ArrayLike) -> Integers:
        """The node in which leaves i and j meet; arrays broadcast."""
        a, b = np.broadcast_arrays(np.asarray(i), np.asarray(j))
        deeper = self.depths[a] >= self.depths[b]
        a, b = np.where(deeper, a, b), np.where(deeper, b, a)
        gap = self.depths[a] - self.depths[b]
        for level, jump in enumerate(self._jumps):
            a = np.where(gap >> level & 1, jump[a], a)
        for jump in reversed(self._jumps):
            apart = jump[a] != jump[b]
            a, b = np.where(apart, jump[a], a), np.where(apart, jump[b], b)
        return np.where(a == b, a, self.parents[a])

    def meeting_size(self, i: npt.ArrayLike, j: npt.ArrayLike) -> Integers:
        """Leaves below the operation in which leaves i and j meet."""
        return self.sizes[self.meeting(i, j)]

    def first_difference(self, other: RevealedTree) -> Difference | None:
        """Where the trees part, at the smallest operation that they do not share; None if equal.

        Raises:
            RevealError: the trees have different numbers of leaves.
        """
        if self.leaves != other.leaves:
            raise RevealError(f"trees over {self.leaves} and {other.leaves} leaves")
        if self.children == other.children:
            return None
        theirs = set(other._clusters().tolist())
        mine = self._clusters()
        alone = [t for t in range(len(self.children)) if int(mine[t]) not in theirs]
        if not alone:  # all of mine is there, so there is more of theirs
            found = other.first_difference(self)
            assert found is not None
            return Difference(found.pair, found.there, found.here)
        node = min(alone, key=lambda t: (self.sizes[self.leaves + t], t)) + self.leaves
        below = np.sort(self.below(node))
        first = np.full_like(below, below[0])
        here = self.meeting(first[1:], below[1:])
        there = other.meeting_size(first[1:], below[1:])
        differs = np.flatnonzero(self.sizes[here] != there)
        if len(differs):
            at = differs[0]
            pair = int(below[0]), int(below[1 + at])
            return Difference(pair, int(self.sizes[here[at]]), int(there[at]))
        i, j = np.triu_indices(len(below), 1)
        mine_ij, theirs_ij = (t.meeting_size(below[i], below[j]) for t in (self, other))
        at = np.flatnonzero(mine_ij != theirs_ij)[0]
        pair = int(below[i[at]]), int(below[j[at]])
        return Difference(pair, int(mine_ij[at]), int(theirs_ij[at]))

    @property
    def block(self) -> int:
        """Elements that enter one operation together: 1 for additions, 16 for a Hopper block."""
        return naming.block_width(self.structure)

    @cached_property
    def contracts(self) -> tuple[contract_tree.Tree, ...]:
        """The contracts' trees that this is, the plainest first; empty if there is none."""
        return naming.contracts_of(self)

    def describe(self) -> str:
        """The tree in words, with the contract's tree that it equals, if there is one."""
        return naming.describe(self)

    @cached_property
    def spans(self) -> tuple[Integers, Integers]:
        """All leaves from left to right, and where those of each node start among them."""
        ordered: list[int] = []
        start = [0] * (self.leaves + len(self.children))
        stack = [len(start) - 1]
        while stack:
            node = stack.pop()
            start[node] = len(ordered)
            if node < self.leaves:
                ordered.append(node)
            else:
                stack += reversed(self.children[node - self.leaves])
        return np.array(ordered), np.array(start)

    def below(self, node: int) -> Integers:
        """The leaves below a node, in the order of the tree."""
        ordered, start = self.spans
        return ordered[start[node] : start[node] + self.sizes[node]]

    def above(self, node: int, size: int) -> int:
        """The lowest ancestor of a node (or itself) with at least `size` leaves; or the root."""
        if self.sizes[node] >= size:
            return node
        for jump in reversed(self._jumps):
            if self.sizes[jump[node]] < size:
                node = int(jump[node])
        return int(self.parents[node])

    def _clusters(self) -> Integers:
        """A 63-bit number for the set of leaves below every operation."""
        words = np.random.default_rng(0).integers(1, 1 << 62, self.leaves).tolist()
        for operands in self.children:
            word = 0
            for c in operands:
                word ^= words[c]
            words.append(word)
        return np.array(words[self.leaves :], np.int64)


def _lane_runs(kind: contract_tree.Leaf, start: int, stop: int) -> list[range]:
    if isinstance(kind, contract_tree.Lanes):
        return [range(start + lane, stop, kind.width) for lane in range(kind.width)]
    return [range(start, stop)]
