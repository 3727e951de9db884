"""Negations that torch has put off (`Tensor.is_neg`) are done before memory is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from samebits import bits, ops
from samebits.errors import DTypeError

X, P, B = torch.randn(4, 8), torch.randn(8), torch.randn(4)
Q, M, FACTORS = torch.randn(1, 2, 4, 8), torch.randn(4, 4), torch.randn(4, 8)
Call = Callable[..., torch.Tensor]
CALLS: dict[str, tuple[Call, tuple[torch.Tensor, ...]]] = {
    "exact.linear": (ops.exact.linear, (X, X, B)),
    "exact.baddbmm": (ops.exact.baddbmm, (B, X[None], X.T[None])),
    "exact.sum": (lambda x: ops.exact.sum(x, 0), (X,)),
    "exact.mean": (lambda x: ops.exact.mean(x, 1), (X,)),
    "exact.softmax": (ops.exact.softmax, (X,)),
    "exact.log_softmax": (lambda x: ops.exact.log_softmax(x, 0), (X,)),
    "exact.logsumexp": (lambda x: ops.exact.logsumexp(x, 1), (X,)),
    "exact.rms_norm": (ops.exact.rms_norm, (X, P)),
    "exact.layer_norm": (ops.exact.layer_norm, (X, P, P)),
    "exact.attention": (lambda q, k, v, m: ops.exact.attention(q, k, v, mask=m), (Q, Q, Q, M)),
    "exact.row_parallel_linear": (ops.exact.row_parallel_linear, (X, X, B)),
    "rms_norm": (lambda x, w: ops.rms_norm(x, (8,), w), (X, P)),
    "layer_norm": (lambda x, w, b: ops.layer_norm(x, (8,), w, b), (X, P, P)),
    "group_norm": (lambda x, w, b: ops.group_norm(x, 2, w, b), (X, P, P)),
    "batch_norm": (lambda x, m, w: ops.batch_norm(x, m, P.abs(), w), (X, P, P)),
    "rotary": (ops.rotary, (Q, FACTORS, FACTORS)),
    "topk": (lambda x: ops.topk(x, 3)[0], (X,)),
    "index_add": (lambda x, s: ops.index_add(x, 0, torch.tensor([1, 1, 0, 2]), s), (X, X)),
}


def put_off(x: torch.Tensor) -> torch.Tensor:
    y = torch._neg_view(-x)
    assert y.is_neg() and torch.equal(y, x)
    return y


@pytest.mark.parametrize("name", CALLS)
def test_the_sign_is_not_lost(name: str) -> None:
    call, operands = CALLS[name]
    want = call(*operands)
    for i, x in enumerate(operands):
        assert bits.equal(call(*operands[:i], put_off(x), *operands[i + 1 :]), want), i


def test_attention_says_what_to_do() -> None:
    with pytest.raises(DTypeError, match=r"k\.resolve_neg"):
        ops.attention(Q, put_off(Q), Q)
