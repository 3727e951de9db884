"""Which tiles a product should have: a model of waves, pure arithmetic on sizes."""

from __future__ import annotations

from collections.abc import Iterator

from samebits.engines.cuda.linear.schedule import WIDEST, ProductSchedule
from samebits.engines.leaves import Leaves

_PROCESSORS = 132
#: Blocks of clusters of four and more that run at a time: parts of the chip have some left over.
_CLUSTERED = 120
#: Narrower tiles ask too much of the caches.
_NARROWEST = 32


def ranked(
    rows: tuple[int, int], n: int, k: int, leaves: Leaves, most: int
) -> list[ProductSchedule]:
    """Schedules for [m, k] x [n, k], the most promising first.

    Args:
        rows: the least and the largest m. Tiles are not higher than the least: the copy engine is
            slow where it reaches beyond a tensor.
        most: how many.
    """
    least, m = rows
    found = [
        s for s in _tiles(n)
        if s.height <= least and s.width <= n and s.takes(leaves)
    ]  # fmt: skip
    return sorted(found, key=lambda s: cycles(s, m, n, k, leaves))[:most]


def _tiles(n: int) -> Iterator[ProductSchedule]:
    """All of them: of the widths that cut n into as many tiles, the narrowest."""
    counts = {-(-n // width) for width in range(_NARROWEST, WIDEST + 1, 8)}
    widths = sorted(-(n // -count // 8) * 8 for count in counts)  # rounded up
    for groups in (1, 2):
        for columns in widths:
            chunks = 2 if 64 * groups + columns <= 160 else 1
            for split, share in ((True, 0), (False, 0), (False, 1), (False, 2)):
                yield ProductSchedule(
                    groups=groups, columns=columns, chunks=chunks, split=split, share=share
                )


def cycles(s: ProductSchedule, m: int, n: int, k: int, leaves: Leaves) -> float:
    """About how long a schedule takes, in clock cycles of a processor.

    Constants are fitted to a thousand times of an H200; one in two is within 5 % of its time, and
    the schedule that comes out first takes 2 % more than the fastest, on average.
    """
    parts = leaves.count if s.split else 1
    tiles = -(-m // s.height) * -(-n // s.width) * (2 if s.share else 1)
    blocks = tiles * parts
    # A step of 16 along k: products, or what they read of shared memory and the copies write.
    products = s.groups * s.columns / 2
    shared = s.groups * (16 + s.columns / 4) + (s.rows + s.columns) / 4
    block = k / 16 / parts * (max(products, 0.54 * shared) + (12 if s.share else 2))
    area = s.rows * s.columns
    block += 3500 + area / 4.9 if parts > 1 else 700 + area / 38
    work = -(-blocks // (_CLUSTERED if parts > 1 else _PROCESSORS)) * block
    # Every operand from memory once, and from the L2 by every block.
    memory = (n * k + m * k + m * n) * 2 / 2220 / min(1.0, blocks / (0.36 * _PROCESSORS))
    box_x, box_w = s.boxes
    cache = tiles * (box_x + box_w) * k * 2 / 11100
    memory = max(memory, 0.09 * memory + 0.91 * cache)
    return 3100 + max(work, memory) + 0.42 * min(work, memory)
