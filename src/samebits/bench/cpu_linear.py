"""Matrix products and convolutions on the CPU, and what one small call costs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from samebits.bench.timing import Row, compare

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_WEIGHTS = ((4096, 4096), (768, 3072), (3072, 768))
_ROWS = {"fp32": (1, 2, 4, 8, 16, 64, 512), "bf16": (1, 4, 8, 16, 64), "fp16": (1, 4, 16)}


def rows() -> Iterator[Row]:
    """The lines of the table, one at a time: linear by dtype, weight and M, then the others."""
    yield from linear()
    yield from others()


def linear() -> Iterator[Row]:
    """``F.linear`` for weights [N, K] and M rows of x."""
    generator = torch.Generator().manual_seed(0)
    for name, dtype in _DTYPES.items():
        for n, k in _WEIGHTS:
            weight = torch.randn(n, k, generator=generator).to(dtype)
            for m in _ROWS[name]:
                x = torch.randn(m, k, generator=generator).to(dtype)
                yield compare(
                    "linear",
                    f"{name} {n}x{k} M={m}",
                    lambda x=x, w=weight: F.linear(x, w),  # type: ignore[misc]
                    target=_target(name, m),
                )


def others() -> Iterator[Row]:
    """Small calls, batched products, convolutions."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    x, w = random(1, 16), random(16, 16)
    yield compare("linear", "fp32 16x16 M=1 (cost of a call)", lambda: F.linear(x, w))
    a, b = random(64, 64, 64), random(64, 64, 64)
    yield compare("matmul", "fp32 bmm 64 x [64, 64] @ [64, 64]", lambda: torch.bmm(a, b))
    c, d = random(256, 1024), random(1024, 1024)
    yield compare("matmul", "fp32 mm [256, 1024] @ [1024, 1024]", lambda: torch.mm(c, d))
    image, kernel = random(2, 64, 56, 56), random(64, 64, 3, 3)
    point = random(64, 64, 1, 1)
    yield compare("conv", "fp32 conv2d 64 -> 64, 3x3, 56x56", lambda: F.conv2d(image, kernel))
    yield compare("conv", "fp32 conv2d 64 -> 64, 1x1, 56x56", lambda: F.conv2d(image, point))
    wide, each = random(1, 96, 56, 56), random(96, 1, 7, 7)
    yield compare(
        "conv",
        "fp32 conv2d 96, 7x7 depthwise, 56x56",
        lambda: F.conv2d(wide, each, padding=3, groups=96),
    )
    sound, taps = random(4, 256, 100), random(512, 256, 3)
    yield compare("conv", "fp32 conv1d 256 -> 512, 3, length 100", lambda: F.conv1d(sound, taps))


def _target(dtype: str, m: int) -> float | None:
    if dtype == "fp32":
        return 1.5 if m <= 16 else 0.9
    return 1.0 if m <= 16 else None
