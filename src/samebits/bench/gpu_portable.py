"""Portable contracts: fp32 products by chains of fma, against cuBLAS in fp32 without tf32."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from samebits import ops
from samebits.bench.gpu import OURS, Line, line
from samebits.bench.gpu_timing import race, sets_for
from samebits.engines.replay import Work
from samebits.mode import deterministic, stock

ROWS = (1, 4, 16, 64, 128, 512, 2048)
QUICK_ROWS = (1, 64)
#: (N, K): Llama-3-8B's keys or values, attention's output, gate.
WEIGHTS = ((1024, 4096), (4096, 4096), (14336, 4096))
CUBLAS = "cuBLAS"
TARGET = 0.8


def lines(quick: bool) -> Iterator[Line]:
    """One line a weight and number of rows."""
    for n, k in WEIGHTS[1:2] if quick else WEIGHTS:
        sets = sets_for(4 * n * k)
        w = [torch.randn(n, k, device="cuda") for _ in range(sets)]
        for m in QUICK_ROWS if quick else ROWS:
            yield _product(w, m)


def _product(w: list[torch.Tensor], m: int) -> Line:
    n, k = w[0].shape
    x = [torch.randn(m, k, device="cuda") for _ in w]
    contenders: dict[str, Work] = {
        OURS: lambda i: ops.linear(x[i], w[i]),
        CUBLAS: lambda i: F.linear(x[i], w[i]),
    }
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.inference_mode():
            result = race(
                contenders, sets=len(w), rounds=5,
                states={OURS: lambda: deterministic(contract="portable"), CUBLAS: stock},
            )  # fmt: skip
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32
    return line(
        "portable", f"{n}x{k}", f"M={m}", result, against=(CUBLAS,), flops=2.0 * m * n * k,
        size=4.0 * (m * k + n * k + m * n), target=TARGET, x=m,
    )  # fmt: skip
