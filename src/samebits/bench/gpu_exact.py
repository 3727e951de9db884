"""Exact contracts: products and rows whose sums are rounded once, whatever their order.

Held against torch's own operations of the same dtype, which promise no bits. Weights are converted
in every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from samebits import ops
from samebits.bench.gpu import OURS, Line, line
from samebits.bench.gpu_timing import race, sets_for
from samebits.engines.replay import Work
from samebits.mode import stock

ROWS = (1, 16, 64, 128, 512, 1024, 2048, 8192)
QUICK_ROWS = (1, 16, 512)
#: (N, K) of Llama-3-8B.
WEIGHTS = ((4096, 4096), (4096, 14336), (14336, 4096))
#: How many times stock's time a product of few rows, of many, and a row's sum or norm may take.
FEW, MANY, ROW = 2.5, 6.0, 1.3
CUBLAS, TORCH = "cuBLAS", "torch eager"
WIDTH = 4096
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def lines(quick: bool) -> Iterator[Line]:
    """Products by weight and number of rows, then operations along rows of 4,096."""
    for n, k in WEIGHTS[:1] if quick else WEIGHTS:
        yield from _products(n, k, QUICK_ROWS if quick else ROWS)
    for rows in (4096,) if quick else (64, 4096):
        for dtype in _TYPES:
            yield from _rows(rows, dtype)


def _products(n: int, k: int, rows: tuple[int, ...]) -> Iterator[Line]:
    sets = sets_for(2 * n * k)
    w = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    for m in rows:
        x = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        contenders: dict[str, Work] = {
            OURS: lambda i, x=x: ops.exact.linear(x[i], w[i]),  # type: ignore[misc]
            CUBLAS: lambda i, x=x: F.linear(x[i], w[i]),  # type: ignore[misc]
        }
        with stock(), torch.inference_mode():
            result = race(contenders, sets=sets, rounds=5)
        yield line(
            "exact", f"{n}x{k}", f"M={m}", result, against=(CUBLAS,), flops=2.0 * m * n * k,
            size=2.0 * (m * k + n * k + m * n), target=_target(m), x=m,
        )  # fmt: skip


def _target(m: int) -> float | None:
    if m <= 16:
        return 1 / FEW
    return 1 / MANY if m >= 512 else None


def _rows(rows: int, dtype: str) -> Iterator[Line]:
    size = rows * WIDTH * _TYPES[dtype].itemsize
    sets = sets_for(size)
    x = [torch.randn(rows, WIDTH, device="cuda", dtype=_TYPES[dtype]) for _ in range(sets)]
    weight = torch.randn(WIDTH, device="cuda", dtype=_TYPES[dtype])
    # Name, what torch calls it, what samebits calls it, passes over x, target.
    Function = Callable[[torch.Tensor], object]
    cases: tuple[tuple[str, Function, Function, int, float | None], ...] = (
        ("sum", lambda t: t.sum(-1), lambda t: ops.exact.sum(t, -1), 1, 1 / ROW),
        ("mean", lambda t: t.mean(-1), lambda t: ops.exact.mean(t, -1), 1, 1 / ROW),
        ("rms_norm", lambda t: F.rms_norm(t, (WIDTH,), weight, 1e-6),
         lambda t: ops.exact.rms_norm(t, weight), 2, 1 / ROW),
        ("layer_norm", lambda t: F.layer_norm(t, (WIDTH,), weight, weight),
         lambda t: ops.exact.layer_norm(t, weight, weight), 2, 1 / ROW),
        ("softmax", lambda t: t.softmax(-1), lambda t: ops.exact.softmax(t, -1), 2, None),
    )  # fmt: skip
    for name, theirs, ours, passes, target in cases:
        contenders: dict[str, Work] = {
            OURS: lambda i, f=ours: f(x[i]),  # type: ignore[misc]
            TORCH: lambda i, f=theirs: f(x[i]),  # type: ignore[misc]
        }
        with stock(), torch.inference_mode():
            result = race(contenders, sets=sets, rounds=5)
        yield line(
            "exact", f"{name} {dtype}", f"{rows} rows", result, against=(TORCH,),
            size=float(passes * size), target=target, x=rows,
        )  # fmt: skip
