"""Random numbers as a function: Philox-4x32-10, and the Gumbel noise of a token.

There is no generator and no state: a number is a function of a seed, a position and a token id.
Source of the algorithm: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from samebits.contract.activations import log1p
from samebits.contract.functions import log
from samebits.contract.numerics import F32, Array, mul32

U32 = npt.NDArray[np.uint32]
ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
#: The largest fp32 below 1.
BELOW_ONE = np.float32(1 - 2.0**-24)


def philox(counter: Array, key: tuple[int, int]) -> U32:
    """Four words for each counter.

    Args:
        counter: [..., 4] uint32.
        key: two 32-bit words.

    Returns:
        [..., 4] uint32.
    """
    c = [np.asarray(counter[..., i]).astype(np.uint64) for i in range(4)]
    k = [np.uint64(word) for word in key]
    for _ in range(ROUNDS):
        products = [c[0] * np.uint64(_MULTIPLIERS[0]), c[2] * np.uint64(_MULTIPLIERS[1])]
        high, low = [p >> np.uint64(32) for p in products], [p & _LOW for p in products]
        c = [high[1] ^ c[1] ^ k[0], low[1], high[0] ^ c[3] ^ k[1], low[0]]
        k = [(word + np.uint64(step)) & _LOW for word, step in zip(k, _STEPS, strict=True)]
    return np.stack(c, axis=-1).astype(np.uint32)


def token_words(seed: int, position: int, vocabulary: int) -> U32:
    """One word for each token id: word id mod 4 of counter (id / 4, position, 0), key `seed`.

    Args:
        seed, position: 64-bit integers; negative ones count as their two's complement.
    """
    counter = np.zeros((-(-vocabulary // 4), 4), np.uint32)
    counter[:, 0] = np.arange(len(counter))
    counter[:, 1], counter[:, 2] = _words(position)
    return philox(counter, _words(seed)).reshape(-1)[:vocabulary]


def uniform(words: Array) -> F32:
    """Words as fp32 numbers in (0, 1), finest next to 0: (w + 1/2) 2^-32, at most 1 - 2^-24."""
    v = mul32(words.astype(np.float32) + np.float32(0.5), np.float32(2.0**-32))
    return np.asarray(np.minimum(v, BELOW_ONE), np.float32)


def gumbel(words: Array) -> F32:
    """Gumbel noise -log(-log(1 - v)) of uniform numbers v, by the contract's log and log1p."""
    return -log(-log1p(-uniform(words)))


def _words(x: int) -> tuple[int, int]:
    return x & 0xFFFFFFFF, x >> 32 & 0xFFFFFFFF
