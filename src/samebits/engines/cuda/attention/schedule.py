"""The schedules of the kernels for sm_90a."""

from __future__ import annotations

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


class DecodeSchedule(Schedule, tag="cuda.decode", frozen=True, kw_only=True):
    """How the decode kernel runs, and for how much work.

    Attributes:
        most: it takes up to so many KV heads of all sequences together; more fill the processors
            without help.
        leaves: and sequences of so many leaves or more.
        blocks: that share the leaves, about.
    """

    most: int = 16
    leaves: int = 16
    blocks: int = 132
