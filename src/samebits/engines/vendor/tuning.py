"""Which algorithms of cuBLASLt a tuner may try, and whether one has a contract's bits."""

from __future__ import annotations

import math

import torch

from samebits.bits import count_different
from samebits.contract import LinearContract
from samebits.engines.driver import _cuda
from samebits.engines.vendor.cublaslt import describe, run
from samebits.engines.vendor.schedule import CublasLt
from samebits.engines.vendor.tiles import CLUSTERS, TILES

_DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32,
}  # fmt: skip
#: Algorithms that one question to the library's heuristic may return.
_ASKED = 64
#: Streaming multiprocessors, and bytes and multiply-adds a second, of the model that sorts.
_SMS, _BANDWIDTH, _RATE = 132, 4.2e12, 400e12


def candidates(
    m: int, n: int, k: int, dtype: torch.dtype, *, out_dtype: torch.dtype | None = None
) -> list[CublasLt]:
    """Schedules that may run ``y[m, n] = x[m, k] @ w[n, k].T`` with contiguous rows.

    First the library's own favourites, then every other configuration of the same algorithms, in
    the order of a model of tiles and waves. None splits k, none needs scratch memory.

    Args:
        m, n, k: sizes of the product.
        dtype, out_dtype: of operands and result.

    Raises:
        DeviceError: there is no GPU, or no library.
    """
    product = _product(m, n, k, dtype, out_dtype or dtype)
    favourites = [c.configuration for c in product.heuristic(_ASKED, 0) if c.workspace == 0]
    ids = dict.fromkeys(configuration[0] for configuration in favourites)
    others = [
        c.configuration
        for algorithm in ids
        for c in product.admissible(_configurations(product, algorithm))
        if c.workspace == 0
    ]
    others.sort(key=lambda configuration: _model(configuration, m, n, k, dtype.itemsize))
    return [
        _schedule(configuration)
        for configuration in dict.fromkeys(map(tuple, [*favourites, *others]))
        if configuration[2] in (0, 1)
    ]


def _product(m: int, n: int, k: int, dtype: torch.dtype, out: torch.dtype) -> _cuda.Product:
    x = torch.empty((m, k), dtype=dtype, device="cuda")
    w = torch.empty((n, k), dtype=dtype, device="cuda")
    return describe(x, w, torch.empty((m, n), dtype=out, device="cuda"), out)


def _configurations(product: _cuda.Product, algorithm: int) -> list[tuple[int, ...]]:
    able = product.capabilities(algorithm)
    return [
        (algorithm, tile, 1, 0, 0, option, stages, 0, cluster)
        for tile in able.tiles
        if tile in TILES
        for stages in able.stages or [0]
        for option in range(able.option_max + 1)
        for cluster in CLUSTERS
    ]


def _model(configuration: list[int], m: int, n: int, k: int, size: int) -> float:
    """Seconds: whole waves of tiles, each as fast as its ratio of area to edge lets it be."""
    rows, cols = TILES[configuration[1]]
    across, down = CLUSTERS[configuration[8]]
    blocks = across * down
    tiles = math.ceil(math.ceil(n / rows) / across) * math.ceil(math.ceil(m / cols) / down) * blocks
    at_once = _SMS // blocks * blocks
    area = rows * cols
    waves = math.ceil(tiles / at_once)
    efficiency = area / (area + 32 * (rows + cols))
    work = waves * area * k * _SMS / (_RATE * efficiency)
    memory = (n * k + m * k) * size / (_BANDWIDTH * min(1.0, tiles / (0.7 * at_once)))
    return max(work, memory) + 0.1 * min(work, memory)


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
