"""Row operations against stock torch: softmax, normalisations, reductions, scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from samebits import ops
from samebits.bench.timing import Row, compare

AREA = "rows"
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
_SHAPES = [(1, 768), (512, 768), (16, 32000), (1, 151936)]


def rows() -> Iterator[Row]:
    """One line per operation, dtype and shape, under the switch."""
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            for shape in _SHAPES:
                yield from _shape(torch.randn(shape).to(dtype))
        yield from _others()


def _shape(x: torch.Tensor) -> Iterator[Row]:
    n = x.shape[1]
    label = f"{_NAMES[x.dtype]} {list(x.shape)}"
    target = None if x.numel() < 4096 else 1.0  # a tiny call costs what a call into Python costs
    cases: dict[str, Callable[[], object]] = {
        "softmax": lambda: x.softmax(-1),
        "log_softmax": lambda: x.log_softmax(-1),
        "sum": lambda: x.sum(-1),
        "mean": lambda: x.mean(-1),
    }
    if n < 10000:
        w = torch.randn(n).to(x.dtype)
        cases["layer_norm"] = lambda: F.layer_norm(x, (n,), w, w)
        cases["rms_norm"] = lambda: F.rms_norm(x, (n,), w)
    for name, fn in cases.items():
        yield compare(AREA, f"{name} {label}", fn, target=target, seconds=0.1)
    if n > 10000:
        ids = torch.zeros(x.shape[0], dtype=torch.int64)
        yield compare(
            AREA,
            f"token_logprob {label}",
            lambda: x.log_softmax(-1).gather(-1, ids[:, None]),
            ours=lambda: ops.token_logprob(x, ids),
            target=1.0,
            seconds=0.1,
        )


def _others() -> Iterator[Row]:
    tall, images = torch.randn(4096, 768), torch.randn(8, 64, 28, 28)
    line = torch.randn(1_000_000)
    cases: dict[str, Callable[[], object]] = {
        "sum dim 0 fp32 [4096, 768]": lambda: tall.sum(0),
        "mean dim 1 fp32 [32, 128, 768]": lambda: tall.view(32, 128, 768).mean(1),
        "sum all fp32 [4096, 768]": lambda: tall.sum(),
        "var fp32 [4096, 768]": lambda: tall.var(-1),
        "norm fp32 [4096, 768]": lambda: torch.linalg.vector_norm(tall, 2, -1),
        "logsumexp fp32 [4096, 768]": lambda: tall.logsumexp(-1),
        "softmax dim 0 fp32 [4096, 768]": lambda: tall.softmax(0),
        "cumsum fp32 [4096, 768]": lambda: tall.cumsum(-1),
        "cumsum dim 0 fp32 [4096, 768]": lambda: tall.cumsum(0),
        "cumsum fp32 [1000000]": lambda: line.cumsum(0),
        "group_norm fp32 [8, 64, 28, 28]": lambda: F.group_norm(images, 8),
        "sum dims 0 2 3 fp32 [8, 64, 28, 28]": lambda: images.sum((0, 2, 3)),
    }
    for name, fn in cases.items():
        yield compare(AREA, name, fn, target=1.0, seconds=0.2)
