"""One operation at many numbers of rows: which of them share a tree.

Every number is called once, on the same random data and on the same probes. Rows that give the same
bits there are of one kind, and one of each kind is revealed in full. Nothing is assumed about where
trees change: neither that they do so once, nor that rows of one call agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.errors import RevealError
from samebits.reveal.front import Revealed, noise, reveal_request
from samebits.reveal.operand import LEVELS, SIGNIFICANT, Operand, called
from samebits.reveal.operations import Request, operand_of

#: Sums of random data, and probes, that are compared at each number of rows.
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
    kinds: dict[str, Kind] = {}
    addends: Tensor | None = None
    with torch.no_grad():
        for m in numbers:
            at = replace(request, m=m)
            operand, terms = operand_of(at)
            if terms is not None or operand.factors:
                raise RevealError(f"{at}: reveal one number of rows at a time")
            if addends is None:
                addends = _addends(operand)
            places: dict[str, list[int]] = {}
            signatures = _signatures(operand, addends)
            for place, signature in enumerate(signatures):
                places.setdefault(signature, []).append(place)
            for signature, same in places.items():
                if signature not in kinds:
                    kinds[signature] = Kind(reveal_request(at, row=same[0]))
                if len(same) == len(signatures):
                    kinds[signature].whole.append(m)
                else:
                    kinds[signature].partly[m] = tuple(same)
            tell(m)
    return list(kinds.values())


def _addends(operand: Operand) -> Tensor:
    """The sums that are compared, [sums, leaves]: as many as fill the slots of whole calls.

    Random ones, whose rounding shows the order of additions; and masks at two leaves, units at
    some others, whose sums are the answers of probes.
    """
    sums = noise(operand, _SAMPLES, seed=0)
    levels, n = operand.levels or LEVELS.get(operand.dtype), operand.leaves
    if levels is not None and n > 2:
        rng = np.random.default_rng(0)
        units = min(n - 2, levels.countable, 1 << SIGNIFICANT.get(operand.dtype, 2))
        probes = np.zeros((_PAIRS, n))
        for probe in probes:
            chosen = rng.choice(n, units + 2, replace=False)
            probe[chosen] = levels.unit
            probe[chosen[:2]] = levels.mask, -levels.mask
        sums = torch.cat([sums, torch.from_numpy(probes).to(operand.dtype)])
    if not operand.rowwise:  # every slot has one, and every sum is in a slot
        whole = -(-len(sums) // operand.slots) * operand.slots
        sums = sums[torch.arange(whole, device=sums.device) % len(sums)]
    return sums.to(operand.device)


def _signatures(operand: Operand, addends: Tensor) -> list[str]:
    """A hash of the results of every row."""
    if operand.rowwise:
        rows = [
            called(operand, (line.expand(operand.slots, -1).contiguous(),))[0].clone()
            for line in addends
        ]
        results = torch.stack(rows, 1)
    else:
        parts = torch.split(addends, operand.slots)
        results = torch.cat([called(operand, (part,)).clone() for part in parts], 1)
    words = results.contiguous().view(torch.uint8).cpu().numpy()
    return [hashlib.sha256(line.tobytes()).hexdigest() for line in words]
