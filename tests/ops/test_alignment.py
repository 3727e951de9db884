"""An operand may begin anywhere: what a call has prepared for one alignment serves no other.

Every operation runs on aligned operands first, so that kernels which read 16 bytes at a time are
compiled, planned and held; then on operands that begin, or whose rows begin, somewhere else.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from samebits import bits, ops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: Elements before the first, and between rows: off by one element of 2 bytes, by 8 and 16 bytes.
PLACES = [(1, 0), (4, 0), (8, 0), (0, 3), (0, 4), (4, 4), (1, 8), (0, 8)]


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    g = torch.Generator().manual_seed(sum(shape))
    wide = torch.ldexp(torch.randn(shape, generator=g), torch.randint(-6, 7, shape, generator=g))
    return wide.to(DEVICE, dtype)


def placed(x: torch.Tensor, before: int, between: int) -> torch.Tensor:
    """A copy of `x` at another place, among NaN."""
    *lead, n = x.shape
    between = between if lead else 0
    room = x.new_full((x.numel() // n * (n + between) + before,), float("nan"))
    return room[before:].view(*lead, n + between)[..., :n].copy_(x)


Case = tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]


def cases() -> dict[str, Case]:
    x, weight, columns = draw(70, 512), draw(256, 512), draw(512)
    q, k, v = draw(1, 8, 200, 64), draw(1, 2, 300, 64), draw(1, 2, 301, 64)[:, :, 1:]
    wide = draw(512, 1024), draw(2048, 1024)
    # A size that a GPU's table knows: cuBLASLt's algorithms.
    known = (draw(64, 4096), draw(4096, 4096)) if DEVICE == "cuda" else (x, weight)
    return {
        "linear": (ops.linear, (x, weight, draw(256))),
        "linear of a known size": (ops.linear, known),
        "linear of one row": (ops.linear, (x[:1], weight, draw(256))),
        "linear of many rows": (ops.linear, wide),
        "linear in fp32": (ops.linear, (x.float(), weight.float())),
        "split linear": (ops.linear, (draw(9, 4096), draw(512, 4096))),
        "mm": (ops.mm, (x, weight.T.contiguous())),
        "bmm": (ops.bmm, (x.view(7, 10, 512), draw(7, 512, 24))),
        "rms_norm": (lambda x, w: ops.rms_norm(x, (512,), w), (x, columns)),
        "layer_norm": (lambda x, w, b: ops.layer_norm(x, (512,), w, b), (x, columns, -columns)),
        "softmax": (ops.softmax, (x,)),
        "log_softmax": (ops.log_softmax, (x,)),
        "sum": (lambda x: ops.sum(x, -1), (x,)),
        "silu": (ops.silu, (x,)),
        "silu_mul": (ops.silu_mul, (x, x * 2)),
        "rotary": (ops.rotary, (draw(1, 70, 8, 64), draw(70, 1, 64), draw(70, 1, 64))),
        "prefill": (lambda q, k, v: ops.attention(q, k, v, causal=True, q_start=100), (q, k, v)),
        "decode": (ops.attention, (q[:, :, :1], k, v)),
    }


@pytest.mark.parametrize("name", cases())
def test_operands_anywhere(name: str) -> None:
    f, operands = cases()[name]
    operands = tuple(x.contiguous() for x in operands)
    want = f(*operands)
    for before, between in PLACES:
        moved = [placed(x, before, between) for x in operands]
        assert bits.equal(f(*moved), want), (before, between)
        for i in range(len(operands)):
            mixed = [*operands[:i], moved[i], *operands[i + 1 :]]
            assert bits.equal(f(*mixed), want), (before, between, f"operand {i}")
        assert bits.equal(f(*operands), want)
