"""One operation at many numbers of rows: which of them share a tree.

Every number is called once on the same random data. Rows that give the same bits there are taken to
have the same tree; one of each kind is revealed in full, and its tree is then probed at every other
number: a row that contradicts it becomes a kind of its own. Nothing is assumed about where trees
change: neither that they do so once, nor that rows of one call agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from samebits.errors import RevealError
from samebits.reveal.front import Revealed, noise, reveal_request
from samebits.reveal.operand import Operand, SignedBox, called
from samebits.reveal.operations import Request, operand_of
from samebits.reveal.oracle import SignedOracle
from samebits.reveal.tree import RevealedTree

#: Rows of random data that are compared, and pairs that are probed at each number of rows.
_SAMPLES, _PAIRS = 32, 32


@dataclass
class Kind:
    """Numbers of rows, and places in them, that share a tree.

    Attributes:
        found: the tree of the first one, revealed in full.
        whole: numbers of rows of which every row has this tree.
        partly: number of rows -> those rows that have it, where others differ.
    """

    found: Revealed
    whole: list[int] = field(default_factory=list)
    partly: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        partly = {str(m): list(rows) for m, rows in self.partly.items()}
        return {"m": self.whole, "rows_of_m": partly, "found": self.found.to_data()}


def sweep(
    request: Request, numbers: Iterable[int], tell: Callable[[int], None] = lambda m: None
) -> list[Kind]:
    """The kinds of trees that an operation has at these numbers of rows.

    Args:
        request: the operation; its m is not looked at.
        numbers: of rows.
        tell: called with every number when it is done.

    Raises:
        RevealError: as `reveal`; or the operation's terms are positive.
    """
    kinds: dict[tuple[str, str], Kind] = {}
    with torch.no_grad():
        for m in numbers:
            at = replace(request, m=m)
            operand, terms = operand_of(at)
            if terms is not None:
                raise RevealError(f"{at}: reveal one number of rows at a time")
            places: dict[str, list[int]] = {}
            signatures = _signatures(operand)
            for place, signature in enumerate(signatures):
                places.setdefault(signature, []).append(place)
            for signature, same in places.items():
                kind = _kind(kinds, at, operand, signature, same[0])
                if len(same) == len(signatures):
                    kind.whole.append(m)
                else:
                    kind.partly[m] = tuple(same)
            tell(m)
    return list(kinds.values())


def _kind(
    kinds: dict[tuple[str, str], Kind], at: Request, operand: Operand, signature: str, place: int
) -> Kind:
    """The kind of a place: a known one with the same bits, if probes agree; else a new one."""
    for (bits, _), kind in kinds.items():
        if bits == signature and _agrees(operand, kind.found.tree, place):
            return kind
    found = reveal_request(at, row=place)
    return kinds.setdefault((signature, found.tree.id), Kind(found))


def _agrees(operand: Operand, tree: RevealedTree, place: int) -> bool:
    if operand.leaves < 3:
        return True
    row, column = (0, place) if operand.rowwise else (place, 0)
    box = SignedBox(operand, row, use=np.array([column]) if operand.rowwise else None)
    oracle = SignedOracle(operand.leaves, box.count, box.capacity)
    rng = np.random.default_rng(place)
    i = rng.integers(0, operand.leaves, _PAIRS)
    j = (i + rng.integers(1, operand.leaves, _PAIRS)) % operand.leaves
    return not oracle.contradicted(tree, i, j).any()


def _signatures(operand: Operand) -> list[str]:
    """A hash of the results of every row on random data that shows the order of additions."""
    sample = noise(operand, _SAMPLES, seed=0)
    if operand.rowwise:
        rows = [
            called(operand, (line.expand(operand.slots, -1).contiguous().to(operand.device),))[0]
            for line in sample
        ]
        results = torch.stack(rows, 1)
    else:
        tiled = sample[torch.arange(operand.slots) % len(sample)].to(operand.device)
        results = called(operand, (tiled,))
    words = results.contiguous().view(torch.uint8).cpu().numpy()
    return [hashlib.sha256(line.tobytes()).hexdigest() for line in words]
