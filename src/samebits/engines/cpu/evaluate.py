"""The fast twin of contract evaluation: importing this module registers it as engine "cpu"."""

from __future__ import annotations

import time

import numpy as np

from samebits.contract import numerics as nx
from samebits.contract.arithmetic import Arithmetic, BlockFma
from samebits.contract.devices import hopper_mma
from samebits.contract.dot import leaf_dot, register_engine
from samebits.contract.numerics import F32
from samebits.contract.tree import Chain, Leaf
from samebits.engines.cpu import _cpu

#: Products for which another thread is worth waking.
_PER_THREAD = 1 << 18


def cpu_leaf_dot(
    x: F32,
    w: F32,
    leaf: Leaf,
    arithmetic: Arithmetic,
    threads: int | None = None,
    acc: F32 | None = None,
) -> F32:
    """`contract.dot.leaf_dot` in C++: the same bits for every tree leaf and arithmetic.

    Args:
        x: [M, K] fp32 values of the arithmetic's input type.
        w: [N, K].
        leaf: a chain, or lanes (IEEE arithmetic only).
        arithmetic: what a step does.
        threads: None takes as many as the work deserves; bits do not depend on it.
        acc: [M, N] fp32 that a chain starts from (the first of the lanes); +0 if None.

    Returns:
        [M, N] fp32.
    """
    m, n, k = len(x), len(w), x.shape[1]
    width = 1 if isinstance(leaf, Chain) else leaf.width
    if isinstance(arithmetic, BlockFma) and width != 1:
        return leaf_dot(x, w, leaf, arithmetic)  # refuses
    x, w = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(w, np.float32)
    out = np.zeros((m, n), np.float32)
    if acc is not None:
        out[:] = acc
    if threads is None:
        threads = max(1, min(_cpu.max_threads(), m * n * k // _PER_THREAD))
    pointers = (x.ctypes.data, w.ctypes.data, out.ctypes.data, m, n, k)
    if isinstance(arithmetic, BlockFma):
        fmt = arithmetic.format
        _cpu.evaluate_block(
            *pointers, fmt.fraction, fmt.min_exponent, arithmetic.block, arithmetic.fraction,
            arithmetic.significand, arithmetic.floor, threads,
        )  # fmt: skip
    else:
        _cpu.evaluate_fma(*pointers, width, threads)
    return out


register_engine("cpu", cpu_leaf_dot)


def products_per_second(arithmetic: Arithmetic | None = None, *, seconds: float = 0.3) -> float:
    """Products that one core evaluates in a second: the median of repeated 64 x 64 x 2048 products.

    Args:
        arithmetic: `hopper_mma("bf16")` if None.
        seconds: how long to measure.
    """
    arithmetic = arithmetic or hopper_mma("bf16")
    rng = np.random.default_rng(0)
    x, w = (nx.round_to(rng.standard_normal((64, 2048)), "bf16") for _ in range(2))
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while not rates or time.perf_counter() < end:
        start = time.perf_counter()
        cpu_leaf_dot(x, w, Chain(), arithmetic, threads=1)
        rates.append(64 * 64 * 2048 / (time.perf_counter() - start))
    return float(np.median(rates))
