"""Negations that torch has put off (`Tensor.is_neg`) are done before memory is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from samebits import bits, ops
from samebits.errors import DTypeError

X, P, B = torch.randn(4, 8), torch.randn(8), torch.randn(4)
Q, M, FACTORS = torch.randn(1, 2, 4, 8), torch.randn(4, 4), torch.randn(4, 8)
ROWS, CACHE, SINKS = torch.randn(5, 2, 8), torch.randn(3, 4, 2, 8), torch.randn(2)
DEEP, IMAGE, FILTER = torch.randn(3, 1024), torch.randn(2, 4, 9), torch.randn(4, 4, 3)
UP, DOWN, SHARES = torch.randn(3, 12, 8), torch.randn(3, 8, 6), torch.rand(4, 2)
PLACES, ENDS = torch.tensor([1, 1, 0, 2]), torch.tensor([0, 2, 5])
EXPERTS, SLOTS = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2]]), torch.tensor([0, 5, 7, 9, 2])
TABLE, LENGTHS = torch.tensor([[0, 1], [2, 1]]), torch.tensor([5, 7])
Call = Callable[..., Any]


def stored(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    caches = CACHE.clone(), CACHE.clone()
    ops.store_paged(k, v, *caches, SLOTS)
    return caches


def penalised(x: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
    names = ("repetition", "frequency", "presence")
    counts = torch.ones(4, 8, dtype=torch.int64)
    return ops.apply_penalties(x, output_counts=counts, **dict(zip(names, factors, strict=True)))


#: One of each kind: what only calls another one of the list is left out.
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
    "augmented_addition": (ops.augmented_addition, (X, X)),
    "binned_sum": (ops.binned_sum, (X,)),
    "linear": (ops.linear, (X, X, B)),
    "linear, packed": (lambda x, w, b: ops.linear(x, ops.pack_weight(w), b), (X, X, B)),
    "baddbmm": (ops.baddbmm, (B, X[None], X.T[None])),
    "mv": (ops.mv, (X, P)),
    "conv1d": (ops.conv1d, (IMAGE, FILTER, B)),
    "conv_transpose1d": (ops.conv_transpose1d, (IMAGE, FILTER, B)),
    "row_parallel_linear": (ops.row_parallel_linear, (DEEP, DEEP, B[:3])),
    "column_parallel_linear": (ops.column_parallel_linear, (X, X, B)),
    "vocab_parallel_embedding": (lambda w: ops.vocab_parallel_embedding(PLACES, w), (X,)),
    "vocab_parallel_logprobs": (lambda x, w: ops.vocab_parallel_logprobs(x, w, PLACES), (X, X)),
    "attention": (
        lambda q, k, v, m, s: ops.attention(q, k, v, mask=m, sinks=s, return_lse=True),
        (Q, Q, Q, M, SINKS),
    ),
    "attention, broadcast": (ops.attention, (Q, Q[0], Q[0])),
    "attention_varlen": (
        lambda q, k, v, s: ops.attention_varlen(q, k, v, ENDS, ENDS, sinks=s),
        (ROWS, ROWS, ROWS, SINKS),
    ),
    "attention_paged": (
        lambda q, k, v, s: ops.attention_paged(q, k, v, TABLE, LENGTHS, ENDS, sinks=s),
        (ROWS, CACHE, CACHE, SINKS),
    ),
    "store_paged": (stored, (ROWS, ROWS)),
    "router_topk": (lambda x: ops.router_topk(x, 2), (X,)),
    "router_topk, bias": (lambda x, b: ops.router_topk(x, 2, scoring="sigmoid", bias=b), (X, P)),
    "grouped_linear": (
        lambda x, w, b: ops.grouped_linear(x, w, PLACES, bias=b), (X, UP, UP[:, :, 0]),
    ),
    "moe": (lambda x, u, d, s: ops.moe(x, u, d, EXPERTS, s), (X, UP, DOWN, SHARES)),
    "moe_combine": (ops.moe_combine, (torch.randn(4, 2, 8), SHARES)),
    "rms_norm": (lambda x, w: ops.rms_norm(x, (8,), w), (X, P)),
    "layer_norm": (lambda x, w, b: ops.layer_norm(x, (8,), w, b), (X, P, P)),
    "group_norm": (lambda x, w, b: ops.group_norm(x, 2, w, b), (X, P, P)),
    "batch_norm": (lambda x, m, w: ops.batch_norm(x, m, P.abs(), w), (X, P, P)),
    "rotary": (ops.rotary, (Q, FACTORS, FACTORS)),
    "rotary_qk": (
        lambda q, k, c, s, w: ops.rotary_qk(q, k, c, s, SLOTS % 4, q_weight=w, k_weight=P),
        (ROWS, ROWS, FACTORS, FACTORS, P),
    ),
    "sum": (lambda x: ops.sum(x, 0), (X,)),
    "std_mean": (lambda x: ops.std_mean(x, 1), (X,)),
    "softmax": (lambda x: ops.softmax(x, 0), (X,)),
    "token_logprob": (lambda x: ops.token_logprob(x, PLACES), (X,)),
    "token_logprobs": (lambda x: ops.token_logprobs(lambda *_, **__: x[None], PLACES[None]), (X,)),
    "cumsum": (lambda x: ops.cumsum(x, 0), (X,)),
    "exp": (ops.exp, (X,)),
    "pow": (ops.pow, (X.abs(), X)),
    "silu_mul": (ops.silu_mul, (X, X)),
    "glu": (ops.glu, (X,)),
    "topk": (lambda x: ops.topk(x, 3), (X,)),
    "sort": (ops.sort, (X,)),
    "argmin": (ops.argmin, (X,)),
    "embedding": (lambda w: ops.embedding(PLACES, w), (X,)),
    "embedding_bag": (
        lambda w, s: ops.embedding_bag(w, PLACES, PLACES[2:3], "sum", s).out, (X, B),
    ),
    "embedding_bag, max": (lambda w: ops.embedding_bag(w, PLACES, PLACES[2:3], "max").out, (X,)),
    "index_add": (lambda x, s: ops.index_add(x, 0, PLACES, s), (X, X)),
    "index_put_accumulate": (lambda x, s: ops.index_put_accumulate(x, (PLACES,), s), (X, X)),
    "scatter_reduce": (
        lambda x, s: ops.scatter_reduce(x, 0, PLACES[:, None].expand(4, 8), s, "prod"), (X, X),
    ),
    "segment_reduce": (lambda x: ops.segment_reduce(x, PLACES, "sum"), (X,)),
    "bincount": (lambda w: ops.bincount(PLACES, w), (B,)),
    "histogram": (lambda x, e, w: ops.histogram(x, e, w), (B, torch.tensor([-1.0, 0, 1]), B)),
    "sample": (
        lambda x, t, m: ops.sample(x, seeds=3, positions=4, temperature=t, min_p=m, logprobs=True),
        (X, B.abs() + 0.5, B.abs() / 8),
    ),
    "apply_penalties": (penalised, (X, B.abs() + 0.5, B, B)),
}  # fmt: skip


def put_off(x: torch.Tensor) -> torch.Tensor:
    y = torch._neg_view(-x)
    assert y.is_neg() and bits.equal(y, x)
    return y


def tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [x for part in result if part is not None for x in tensors(part)]


@pytest.mark.parametrize("name", CALLS)
def test_the_sign_is_not_lost(name: str) -> None:
    call, operands = CALLS[name]
    want = tensors(call(*operands))
    for i, x in enumerate(operands):
        got = tensors(call(*operands[:i], put_off(x), *operands[i + 1 :]))
        assert all(map(bits.equal, got, want)), i


@pytest.mark.parametrize(
    "name", ["linear", "baddbmm", "mv", "conv1d", "conv_transpose1d", "attention"]
)
def test_gradients(name: str) -> None:
    """Of results, as torch may hand them to us, and where an operand is negated."""
    call, operands = CALLS[name]
    leaves = [x.clone().requires_grad_() for x in operands]
    y = tensors(call(*leaves))[0]
    grad = torch.randn_like(y)
    want = torch.autograd.grad(y, leaves, grad, retain_graph=True)
    got = torch.autograd.grad(y, leaves, put_off(grad))
    assert all(map(bits.equal, got, want))
    for i, x in enumerate(operands):
        given = [*leaves[:i], put_off(x).requires_grad_(), *leaves[i + 1 :]]
        again = tensors(call(*given))[0]
        assert bits.equal(again, y), i
        assert all(map(bits.equal, torch.autograd.grad(again, given, grad), want)), i


def test_imaginary_parts_of_conjugates() -> None:
    """Where such tensors come from."""
    z = torch.randn(1, 2, 4, 8, dtype=torch.complex64)
    q = z.conj().imag
    assert q.is_neg()
    assert bits.equal(ops.attention(q, q, q), ops.attention(*3 * (q.resolve_neg(),)))


def test_nothing_is_written_to_negated_views() -> None:
    caches = CACHE.clone(), put_off(CACHE)
    for k, v in (caches, caches[::-1]):
        with pytest.raises(DTypeError, match="is a negated view"):
            ops.store_paged(ROWS, ROWS, k, v, SLOTS)
    with pytest.raises(DTypeError, match="out is a negated view"):
        ops.attention_varlen(ROWS, ROWS, ROWS, ENDS, ENDS, out=put_off(ROWS))
