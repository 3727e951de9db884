"""The schedules of the kernels for sm_90a."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import ClassVar

from samebits.engines.schedule import Schedule


class PrefillSchedule(Schedule, tag="cuda.prefill", frozen=True, kw_only=True):
    """How the prefill kernel runs, and from how much work on.

    Attributes:
        tiles: it takes work of this many tiles (128 rows of a head) and more; less does not fill
            the processors, and is better split along the keys.
        cluster: blocks that fetch keys and values together, 1 or 2; 2 needs an even number of query
            heads a KV head, and is 1 where there is not.
        resident: bytes of K and V that are worked on at a time, so that they stay in the L2.
    """

    tiles: int = 96
    cluster: int = 1
    resident: int = 24 << 20

    allowed: ClassVar[Mapping[str, Container[int]]] = {
        "tiles": range(1 << 31),
        "cluster": (1, 2),
        "resident": range(1, 1 << 40),
    }


class DecodeSchedule(Schedule, tag="cuda.decode", frozen=True, kw_only=True):
    """How decoding runs, and for how much work. A lane is a KV head of a sequence.

    Attributes:
        spread: lanes whose rows see so many leaves or fewer are each a cluster's (`spread`) ...
        places: ... if their leaves, rounded up to a power of two, are no more than this in all.
        leaves: else, where rows see so many leaves or more, blocks walk runs of them (`decode`) ...
        most: ... for up to so many lanes; more fill the processors without help.
        blocks: that share the leaves, at most. Where only the device knows how many leaves there
            are, blocks and lanes may be twice as many.
    """

    spread: int = 4
    places: int = 32
    leaves: int = 4
    most: int = 64
    blocks: int = 132

    allowed: ClassVar[Mapping[str, Container[int]]] = {
        "spread": range(9),  # a cluster's blocks
        **dict.fromkeys(("places", "leaves", "most"), range(1 << 31)),
        "blocks": range(1, 1 << 16),
    }

    def spreads(self, lanes: int, leaves: int) -> bool:
        """Whether the leaves of each lane are spread over a cluster."""
        places = 1 << max(0, leaves - 1).bit_length()
        return leaves <= self.spread and lanes * places <= self.places

    def runs(self, lanes: int, leaves: int) -> bool:
        """Whether blocks walk runs of the leaves."""
        return lanes <= self.most and leaves >= self.leaves
