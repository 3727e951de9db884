"""Products with the weights of well-known models, for every number of rows.

Contenders: torch's default (cuBLAS, which may split K), cuBLASLt's own choice without workspace (so
that it cannot split: the way of vLLM's batch-invariant mode), and one 128x128x64 tile for every
shape (the way of the first batch-invariant kernels).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from samebits import ops
from samebits.bench.gpu import OURS, Line, line
from samebits.bench.gpu_timing import race, sets_for
from samebits.engines.replay import Work
from samebits.mode import stock

ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)
QUICK_ROWS = (1, 16, 64, 192, 1024, 8192)
#: (N, K): fused q, k and v; attention's output; fused gate and up; down.
MODELS = {
    "Llama-3-8B": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    "Qwen3-8B": ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)),
    "Qwen3-32B": ((10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600)),
}
QUICK_SHAPES = ((6144, 4096), (4096, 14336))
CUBLAS, LT, TILE = "cuBLAS", "cuBLASLt, no workspace", "one 128x128x64 tile"
#: A point of the table may not be slower than this.
TARGET = 0.90


def lines(quick: bool) -> Iterator[Line]:
    """One line a weight and number of rows."""
    shapes = QUICK_SHAPES if quick else tuple(dict.fromkeys(s for m in MODELS.values() for s in m))
    for n, k in shapes:
        yield from weight_lines("linear", n, k, QUICK_ROWS if quick else ROWS, TARGET)


def weight_lines(area: str, n: int, k: int, rows: tuple[int, ...], target: float) -> Iterator[Line]:
    """Lines of one bf16 weight [n, k]."""
    sets = sets_for(2 * n * k)
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    for m in rows:
        inputs = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        with stock(), torch.inference_mode():
            result = race(contenders(inputs, weights), sets=sets, rounds=5)
        yield line(
            area,
            f"{n}x{k}",
            f"M={m}",
            result,
            against=(CUBLAS,),
            flops=2.0 * m * n * k,
            size=2.0 * (m * k + n * k + m * n),
            target=target,
            x=m,
        )


def contenders(x: list[torch.Tensor], w: list[torch.Tensor]) -> dict[str, Work]:
    """One product of the i-th input and weight, by contender."""
    return {
        OURS: lambda i: ops.linear(x[i], w[i]),
        CUBLAS: lambda i: F.linear(x[i], w[i]),
        LT: without_workspace(x, w),
        TILE: one_tile(x, w),
    }


def without_workspace(x: list[torch.Tensor], w: list[torch.Tensor]) -> Work:
    """cuBLASLt's heuristic choice for products that may use no workspace."""
    from samebits.engines.vendor.cublaslt import describe

    made: list[Any] = []

    def work(i: int) -> object:
        out = x[i].new_empty(x[i].shape[0], w[i].shape[0])
        if not made:
            product = describe(x[i], w[i], out, out.dtype)
            product.pin(product.heuristic(1, 0)[0].configuration)
            made.append(product)
        a, b, d = w[i].data_ptr(), x[i].data_ptr(), out.data_ptr()
        stream = torch.cuda.current_stream().cuda_stream
        return made[0].run(a, b, d, d, 0, 1.0, 0.0, 0, 0, stream)

    return work


def one_tile(x: list[torch.Tensor], w: list[torch.Tensor]) -> Work:
    """Our own kernel pinned to one tile, whatever the shape."""
    from samebits.engines.triton.linear.run import run
    from samebits.engines.triton.linear.schedule import GemmSchedule
    from samebits.plan import contract_of

    tile = GemmSchedule(block_m=128, block_n=128, block_k=64, warps=8, stages=3)
    n, k = w[0].shape
    contract = contract_of("linear", n=n, k=k, dtype="bf16", device="sm_90")

    def work(i: int) -> object:
        out = x[i].new_empty(x[i].shape[0], n)
        run(contract, tile, x[i], w[i], out)
        return out

    return work
