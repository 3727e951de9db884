"""The family of matrix products: which kernels compute one, and their schedules.

Two engines have kernels of their own, with the same bits. Triton's take any operands; those in CUDA
C++ (`engines.cuda.linear`) take aligned rows: of 16-bit numbers for the tensor cores, in tiles of
any width, so that tiles fit whole waves of a chip, and of any type for chains of fma.
"""

from __future__ import annotations

from samebits.contract import PORTABLE, parse_tree
from samebits.engines.cuda.linear import chains, choose
from samebits.engines.cuda.linear.schedule import ProductSchedule
from samebits.engines.leaves import leaves_of
from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.engines.triton.linear import schedule as triton
from samebits.engines.triton.linear.schedule import GemmSchedule

#: So many tiles of a kernel in CUDA C++ are worth a tuner's time.
_TRIED = 10
#: From so many rows on tiles of any width are the default, and are tried.
_FROM = 65


def default(key: ScheduleKey, bucket: int) -> Schedule:
    """The analytical default of a bucket: a pure function of the key.

    Args:
        bucket: indexes BUCKETS; len(BUCKETS) is what lies beyond.
    """
    if _by_fma(key):
        return chains.choose(_rows(bucket)[1], key.n or 1, key.k or 1)
    tiles = _tiles(key, bucket, 1)
    return tiles[0] if tiles else triton.default(key, bucket)


def general(key: ScheduleKey, bucket: int) -> GemmSchedule:
    """A schedule that takes any operands."""
    return triton.default(key, bucket)


def candidates(key: ScheduleKey, bucket: int) -> tuple[Schedule, ...]:
    """Schedules that a tuner should time for a bucket of rows: all have the same bits."""
    if not _by_fma(key):
        return (*_tiles(key, bucket, _TRIED), *triton.candidates(key, bucket))
    own = chains.ranked(_rows(bucket)[1], key.n or 1, key.k or 1, _TRIED)
    return (*own, *triton.candidates(key, bucket))


def _by_fma(key: ScheduleKey) -> bool:
    """Whether the contract is a chain of fma."""
    return (key.dtype == "fp32" or key.device == PORTABLE) and key.tree == "chain"


def _rows(bucket: int) -> tuple[int, int]:
    """The least and the largest number of rows of a bucket."""
    least = BUCKETS[bucket - 1] + 1 if bucket else 1
    return least, BUCKETS[bucket] if bucket < len(BUCKETS) else 2 * least


def _tiles(key: ScheduleKey, bucket: int, most: int) -> list[ProductSchedule]:
    """The best tiles of any width; none where the kernel does not take the weight."""
    n, k = key.n or 0, key.k or 0
    least, largest = _rows(bucket)
    plain = key.dtype in ("bf16", "fp16") and key.scaling == "none" and key.device != PORTABLE
    if least < _FROM or not plain or n < 1 or k < 1 or n % 8 or k % 8:
        return []
    return choose.ranked((least, largest), n, k, leaves_of(parse_tree(key.tree), k), most)
