"""Operations called in compiled code: what they copy stays until a kernel has read it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import samebits as sb
from samebits import bits, ops

X, W, Q = torch.randn(96, 40), torch.randn(24, 96), torch.randn(1, 2, 64, 4)
CALLS: dict[str, Callable[[], torch.Tensor]] = {
    "linear": lambda: ops.linear(X.t() * 2, W),
    "softmax": lambda: ops.softmax(X.t() * 2, -1),
    "layer_norm": lambda: ops.layer_norm(X.t() * 2, (96,), W[0], W[1]),
    "exact.linear": lambda: ops.exact.linear(X.t() * 2, W),
    "exact.attention": lambda: ops.exact.attention(*(Q.mT * f for f in (1, 2, 3))),
    "augmented_addition": lambda: torch.stack(sb.augmented_addition(X.t() * 2, X.t())),
}


@pytest.mark.parametrize("name", CALLS)
def test_bits_of_eager_code(name: str) -> None:
    torch._dynamo.reset()
    want = CALLS[name]()
    compiled = torch.compile(lambda: CALLS[name]() + 0, backend="eager")
    for _ in range(3):
        assert bits.equal(compiled(), want + 0)
