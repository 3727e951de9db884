"""Row operations against stock torch: softmax, normalisations, reductions, scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from samebits import ops
from samebits.bench.timing import Row, compare

AREA = "rows"
_SHAPES = [(1, 768), (16, 768), (512, 768), (1, 32000), (64, 32000), (1, 151936), (16, 151936)]


def rows() -> Iterator[Row]:
    """One line per operation, dtype and shape; ours is the public function of `samebits.ops`."""
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            for shape in _SHAPES:
                yield from _shape(torch.randn(shape).to(dtype))
        yield from _others()


def _shape(x: torch.Tensor) -> Iterator[Row]:
    n = x.shape[1]
    label = f"{str(x.dtype)[6:]} {list(x.shape)}"
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "softmax": (lambda: x.softmax(-1), lambda: ops.softmax(x)),
        "log_softmax": (lambda: x.log_softmax(-1), lambda: ops.log_softmax(x)),
        "sum": (lambda: x.sum(-1), lambda: ops.sum(x, -1)),
        "mean": (lambda: x.mean(-1), lambda: ops.mean(x, -1)),
    }
    if n < 10000:
        w = torch.randn(n).to(x.dtype)
        cases["layer_norm"] = (
            lambda: F.layer_norm(x, (n,), w, w),
            lambda: ops.layer_norm(x, (n,), w, w),
        )
        cases["rms_norm"] = (lambda: F.rms_norm(x, (n,), w), lambda: ops.rms_norm(x, (n,), w))
    else:
        ids = torch.zeros(x.shape[0], dtype=torch.int64)
        cases["token_logprob"] = (
            lambda: x.log_softmax(-1).gather(-1, ids[:, None]),
            lambda: ops.token_logprob(x, ids),
        )
    for name, (stock, ours) in cases.items():
        yield compare(AREA, f"{name} {label}", stock, ours=ours, target=1.0, seconds=0.1)


def _others() -> Iterator[Row]:
    tall, images = torch.randn(4096, 768), torch.randn(8, 64, 56, 56)
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "sum dim 0 [4096, 768]": (lambda: tall.sum(0), lambda: ops.sum(tall, 0)),
        "mean dim 1 [32, 128, 768]": (
            lambda: tall.view(32, 128, 768).mean(1),
            lambda: ops.mean(tall.view(32, 128, 768), 1),
        ),
        "sum all [4096, 768]": (lambda: tall.sum(), lambda: ops.sum(tall)),
        "var [4096, 768]": (lambda: tall.var(-1), lambda: ops.var(tall, -1)),
        "norm [4096, 768]": (
            lambda: torch.linalg.vector_norm(tall, 2, -1),
            lambda: ops.vector_norm(tall, 2, -1),
        ),
        "logsumexp [4096, 768]": (lambda: tall.logsumexp(-1), lambda: ops.logsumexp(tall, -1)),
        "softmax dim 0 [4096, 768]": (lambda: tall.softmax(0), lambda: ops.softmax(tall, 0)),
        "cumsum [4096, 768]": (lambda: tall.cumsum(-1), lambda: ops.cumsum(tall, -1)),
        "cumsum dim 0 [4096, 768]": (lambda: tall.cumsum(0), lambda: ops.cumsum(tall, 0)),
        "cumsum [1e6]": (
            lambda: tall.view(-1)[:1000000].cumsum(0),
            lambda: ops.cumsum(tall.view(-1)[:1000000], 0),
        ),
        "group_norm [8, 64, 56, 56]": (
            lambda: F.group_norm(images, 8),
            lambda: ops.group_norm(images, 8),
        ),
        "sum dims 0 2 3 [8, 64, 56, 56]": (
            lambda: images.sum((0, 2, 3)),
            lambda: ops.sum(images, (0, 2, 3)),
        ),
    }
    for name, (stock, ours) in cases.items():
        yield compare(AREA, f"{name} float32", stock, ours=ours, target=1.0, seconds=0.2)
