"""Which algorithms of cuBLASLt a tuner may try, and whether one has a contract's bits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import torch

from samebits.bits import count_different
from samebits.contract import LinearContract
from samebits.engines.driver import _cuda
from samebits.engines.vendor.cublaslt import describe, run
from samebits.engines.vendor.schedule import CublasLt
from samebits.engines.vendor.tiles import CLUSTERS, TILES

_DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32,
}  # fmt: skip
#: Algorithms that one question to the library's heuristic may return.
_ASKED = 64
#: 1 x 1, 2 x 1, 1 x 2 and 4 x 1; no other cluster won in a sweep of all.
_CLUSTERS = (2, 3, 5, 4)
#: From this area on tiles need two consumer warpgroups: the algorithm's options from 4 on.
_LARGE = 24000
#: Of a tile, so many clusters and options; tiles beyond this area spill.
_PER_TILE, _SMALLEST, _LARGEST = 2, 1024, 256 * 192
#: The tile of matrix-vector kernels, in which threads share k: their tree is not the chain.
_NO_TILE = 0
#: Streaming multiprocessors; bytes of scratch memory that an algorithm may ask for.
_SMS, _SCRATCH = 132, 4096


def candidates(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
    most: int = 24,
) -> list[CublasLt]:
    """Schedules for ``y[m, n] = x[m, k] @ w[n, k].T`` with contiguous rows, the likeliest first.

    The library's own favourites (8 at most), then, on tensor cores, other tiles of its first
    algorithm in the order of a model of waves. None splits k; all can add a bias.

    On an H200, over 50 sizes, the fastest of the favourites took 2.3 % more time than the fastest
    that a sweep of some 200 found, and the fastest of them and 8 others 1.0 % more.

    Args:
        m, n, k: sizes of the product.
        dtype, out_dtype: of operands and result.
        most: how many.

    Raises:
        DeviceError: there is no GPU, or no library.
    """
    x = torch.empty((m, k), dtype=dtype, device="cuda")
    w = torch.empty((n, k), dtype=dtype, device="cuda")
    y = torch.empty((m, n), dtype=out_dtype or dtype, device="cuda")
    product = describe(x, w, y, y.dtype, bias=y.dtype)
    found = {tuple(c.configuration): None for c in product.heuristic(_ASKED, _SCRATCH)}
    modelled = 0 < len(found) < most and dtype is not torch.float32
    for configuration in _others(next(iter(found)), m, n, k) if modelled else ():
        if len(found) >= most:
            break
        found.update((tuple(c.configuration), None) for c in product.admissible([configuration]))
    return [_schedule(c) for c in found if c[1] != _NO_TILE and c[2] in (0, 1)][:most]


def _others(like: tuple[int, ...], m: int, n: int, k: int) -> Iterator[tuple[int, ...]]:
    """Configurations of the same algorithm and stages, in the order of the model."""
    algorithm, stages, inner = like[0], like[6], like[7]
    ranked = sorted(
        (_model(TILES[tile], CLUSTERS[cluster], m, n, k), tile, option, cluster)
        for tile, (rows, cols) in TILES.items()
        if _SMALLEST <= rows * cols <= _LARGEST
        for option in ((0,) if rows * cols < _LARGE else (4, 5))
        for cluster in _CLUSTERS
    )
    seen: Counter[int] = Counter()
    for _, tile, option, cluster in ranked:
        seen[tile] += 1
        if seen[tile] <= _PER_TILE:
            yield algorithm, tile, 1, 0, 0, option, stages, inner, cluster


def _model(tile: tuple[int, int], cluster: tuple[int, int], m: int, n: int, k: int) -> float:
    """Seconds: whole waves of tiles, each as fast as its area over its edges lets it be, and the
    memory, which a GPU that is half full can just keep busy. Constants fitted to an H200's times.
    """
    (rows, cols), (across, down) = tile, cluster
    blocks = across * down
    tiles = math.ceil(math.ceil(n / rows) / across) * math.ceil(math.ceil(m / cols) / down) * blocks
    at_once, area = _SMS // blocks * blocks, rows * cols
    edges = 1 + 16 * (rows + cols) / area
    work = math.ceil(tiles / at_once) * area * k * _SMS * edges / 400e12
    memory = (n * k + m * k) * 2 / (4.2e12 * min(1.0, tiles / (0.5 * at_once)))
    crowded = 1.02 if blocks > 2 else 1.0
    return (max(work, memory) + 0.1 * min(work, memory)) * crowded


def _schedule(configuration: tuple[int, ...]) -> CublasLt:
    algorithm, tile, _, _, swizzle, option, stages, inner, cluster = configuration
    return CublasLt(
        version=_cuda.lt_version(), algorithm=algorithm, tile=tile, stages=stages, cluster=cluster,
        inner=inner, swizzle=swizzle, option=option,
    )  # fmt: skip


def admit(
    contract: LinearContract, schedule: CublasLt, m: int, n: int, k: int, *, seed: int = 0
) -> str | None:
    """Whether a schedule has the contract's bits on this machine; None if so, else what differs.

    Operands have exponents spread over 2**-6 .. 2**6. Compared, byte by byte, with the evaluator:
    accumulators and rounded results, also with a bias, over all columns and rows next to edges of
    tiles and some others; for k itself and for a k that ends inside a block.

    Args:
        contract: see `cublaslt.run`.
        m, n, k: sizes of the product.
        seed: of operands and sample.

    Raises:
        DeviceError: the library refuses the schedule.
    """
    rng = torch.Generator().manual_seed(seed)
    dtype = _DTYPES[contract.input]
    rows, cols = _sample(m, rng), _sample(n, rng)
    for length in (k, max(8, k // 2 // 8 * 8 - 8)):
        x, w = _spread((m, length), dtype, rng), _spread((n, length), dtype, rng)
        for out in dict.fromkeys((torch.float32, dtype)):
            for c in (None, _spread((n,), out, rng)):
                y = torch.full((m, n), math.nan, dtype=out, device="cuda")
                if not run(contract, schedule, x, w, y, None if c is None else c.expand(m, n)):
                    return f"not taken at k = {length}"
                wanted = contract.evaluate(
                    x[rows].cpu(), w[cols].cpu(), None if c is None else c[cols].cpu(), out
                )
                assert isinstance(wanted, torch.Tensor)
                differ = count_different(y[rows][:, cols].cpu(), wanted)
                if differ:
                    return (
                        f"{differ} of {wanted.numel()} elements differ from {contract.id} at "
                        f"k = {length}, {out}{'' if c is None else ' with a bias'}"
                    )
    return None


def _spread(shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> torch.Tensor:
    """Normal numbers times powers of two, on the GPU."""
    exponent = torch.randint(-6, 7, shape, generator=rng)
    return torch.ldexp(torch.randn(shape, generator=rng), exponent).to("cuda", dtype)


def _sample(size: int, rng: torch.Generator) -> torch.Tensor:
    """Some indices below size: both sides of the edges of tiles, and random ones."""
    edges = (0, 7, 8, 63, 64, 127, 128, 191, 192, 255, 256, size - 2, size - 1)
    others = torch.randint(0, size, (11,), generator=rng).tolist()
    return torch.tensor(sorted({i for i in (*edges, *others) if 0 <= i < size}))
