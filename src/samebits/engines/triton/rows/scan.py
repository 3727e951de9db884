"""Running sums and products: one chain a row, in fp64, with the CPU engine's bits.

Rows run side by side, a lane each. Their elements lie in steps of `AHEAD` columns that are loaded
before they are added, so that the chain waits for memory once a step.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch

#: Rows of a program, and columns that are loaded at once.
LANES, AHEAD = 32, 16


@triton.jit
def scan_kernel(
    x, y, rows, n, inner, PRODUCT: tl.constexpr, LANES: tl.constexpr, AHEAD: tl.constexpr
):
    """Chains along the middle axis of dense [outer, n, inner]; rows = outer * inner."""
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    live = row < rows
    at = row // inner * n * inner + row % inner
    acc = tl.full((LANES,), 1.0 if PRODUCT else 0.0, tl.float64)
    for start in range(0, n, AHEAD):
        ahead = ()
        for k in tl.static_range(AHEAD):
            value = tl.load(x + at + k * inner, live & (start + k < n), 0.0)
            ahead = ahead + (value,)  # noqa: RUF005  (a star has no meaning to the compiler)
        for k in tl.static_range(AHEAD):
            value = ahead[k].to(tl.float64)
            acc = acc * value if PRODUCT else acc + value
            out = acc.to(tl.float32).to(y.dtype.element_ty)
            tl.store(y + at + k * inner, out, live & (start + k < n))
        at += AHEAD * inner


def scan(x: torch.Tensor, axis: int, dtype: torch.dtype, product: bool) -> torch.Tensor:
    """Running sum or product of `x` along `axis` >= 0, as `samebits.engines.cpu.norm.scan`."""
    x = x.contiguous()
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel():
        n = x.shape[axis] if x.dim() else 1
        inner = math.prod(x.shape[axis + 1 :])
        rows = x.numel() // n
        launch(
            scan_kernel, (triton.cdiv(rows, LANES),), x, y, rows, n, inner,
            PRODUCT=product, LANES=LANES, AHEAD=AHEAD, num_warps=1,
        )  # fmt: skip
    return y
