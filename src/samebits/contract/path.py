"""The digest of a reduction path: which leaves were accumulated, and in which order folded.

A kernel can compute it beside its sums, from the very indices that its loops go through, for a few
integer instructions a leaf. What it has to be follows from the contract alone (`expected`), so a
leaf that was dropped, taken twice, cut elsewhere or folded out of order shows, whatever the numbers
are. A wrong path has the right digest with a probability of 2^-32.

All arithmetic is modulo 2^32. Leaves are scrambled by a bijection ("lowbias32", C. Wellons,
hash-prospector, 2018), so that they are as good as random; a fold is a step of Horner's rule, which
depends on order and costs one multiply-add.
"""

from __future__ import annotations

from functools import lru_cache

from samebits.contract.base import Contract
from samebits.contract.tree import Lanes, Leaf, Tree, reduce

_WORD = 0xFFFFFFFF
#: The fold's factor: odd, 2^32 divided by the golden ratio.
FACTOR = 0x9E3779B1


def mix(x: int) -> int:
    """A bijection of 32-bit words without visible structure."""
    x &= _WORD
    x = (x ^ x >> 16) * 0x7FEB352D & _WORD
    x = (x ^ x >> 15) * 0x846CA68B & _WORD
    return x ^ x >> 16


def leaf(begin: int, end: int, lanes: int = 1) -> int:
    """The word of a leaf over [begin, end), accumulated in `lanes` interleaved chains."""
    return mix(mix(mix(lanes) + begin) + end)


def fold(digest: int, word: int) -> int:
    """The digest after the leaf, or the scrambled subtree, `word` was added."""
    return digest * FACTOR + word & _WORD


def seed(contract: Contract | str) -> int:
    """Where the digests of a contract begin: 32 bits of its id (or of such an id)."""
    return int((contract if isinstance(contract, str) else contract.id)[:8], 16)


@lru_cache(maxsize=4096)
def expected(tree: Tree, k: int, start: int = 0) -> int:
    """The digest of `tree` over k elements, from the digest `start` on.

    An ascending fold is a run of `fold` over its leaves. Where the right-hand side of an addition
    is itself a sum, that one begins at 0 and is scrambled, so that ((a + b) + c) + d and
    (a + b) + (c + d) differ.
    """
    Shadow = tuple[tuple[int, ...], bool]

    def one(kind: Leaf, begin: int, end: int) -> Shadow:
        return (leaf(begin, end, kind.width if isinstance(kind, Lanes) else 1),), True

    def add(left: Shadow, right: Shadow) -> Shadow:
        word = right[0][0] if right[1] else mix(_run(right[0], 0))
        return (*left[0], word), False

    return _run(reduce(tree, 0, k, one, add)[0], start)


def ascending(length: int, begin: int, end: int, start: int) -> int:
    """The digest of attention over the keys [begin, end): leaves with edges at multiples of
    `length`, cut to what is seen, folded in ascending order, from the digest `start` on."""
    edges = range(begin // length * length, end, length)
    return _run(tuple(leaf(max(e, begin), min(e + length, end)) for e in edges), start)


def _run(words: tuple[int, ...], start: int) -> int:
    for word in words:
        start = fold(start, word)
    return start
