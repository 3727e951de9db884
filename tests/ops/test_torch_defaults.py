"""What torch takes new tensors to be by default, their device and dtype, reaches no operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import samebits as sb
from samebits import bits, ops

X, W, B = torch.randn(5, 8), torch.randn(6, 8), torch.randn(6)
V, POSITIVE = torch.randn(8), torch.rand(5, 8) + 0.5
HEADS = torch.randn(1, 2, 5, 96)  # 1 / sqrt(96) is no bf16 number
IMAGE, FILTER = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
IDS = torch.tensor([0, 2, 2, 1, 0])
EXPERTS = torch.randn(3, 4, 8), torch.randn(3, 8, 2)
CHOSEN, SHARES = torch.tensor([[0, 1]] * 5), torch.rand(5, 2)
REAL = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "elu", "erf", "erfc", "exp",
    "exp2", "expm1", "gelu", "log", "log10", "log1p", "log2", "logit", "mish", "rsqrt", "selu",
    "sigmoid", "silu", "sin", "sinh", "softplus", "sqrt", "tan", "tanh",
)  # fmt: skip

CALLS: dict[str, Callable[[], object]] = {
    **{name: lambda name=name: getattr(ops, name)(POSITIVE) for name in REAL},  # type: ignore[misc]
    "atan2": lambda: ops.atan2(X, POSITIVE),
    "pow": lambda: ops.pow(POSITIVE, 1.7),
    "pow of rows": lambda: ops.pow(POSITIVE, V),
    "glu": lambda: ops.glu(X, -1),
    "silu_mul": lambda: ops.silu_mul(X, POSITIVE),
    "linear": lambda: ops.linear(X, W, B),
    "packed linear": lambda: ops.linear(X, ops.pack_weight(W), B),
    "matmul": lambda: ops.matmul(X, W.t()),
    "addmv": lambda: ops.addmv(V[:5], X, V),
    "attention": lambda: ops.attention(HEADS, HEADS, HEADS),
    "conv2d": lambda: ops.conv2d(IMAGE, FILTER),
    "conv_transpose2d": lambda: ops.conv_transpose2d(IMAGE, FILTER.transpose(0, 1)),
    "sum": lambda: ops.sum(X, 1),
    "mean of all": lambda: ops.mean(X),
    "std_mean": lambda: ops.std_mean(X, 1),
    "var_mean": lambda: ops.var_mean(X.t(), 1),
    "logsumexp": lambda: ops.logsumexp(X, 1),
    "vector_norm": lambda: ops.vector_norm(X, 2, 1),
    "softmax": lambda: ops.softmax(X, 1),
    "softmax of columns": lambda: ops.softmax(X, 0),
    "log_softmax": lambda: ops.log_softmax(X, 1),
    "layer_norm": lambda: ops.layer_norm(X, (8,), V, V),
    "layer_norm of columns": lambda: ops.layer_norm(W.t(), (6,)),
    "rms_norm": lambda: ops.rms_norm(X, (8,), V),
    "group_norm": lambda: ops.group_norm(IMAGE, 3),
    "batch_norm": lambda: ops.batch_norm(IMAGE, V[:3], POSITIVE[0, :3]),
    "cumsum": lambda: ops.cumsum(X, 1),
    "cumprod": lambda: ops.cumprod(X, 0),
    "topk": lambda: ops.topk(X, 3),
    "sort": lambda: ops.sort(X, 1),
    "argmax": lambda: ops.argmax(X, 1),
    "kthvalue": lambda: ops.kthvalue(X, 2),
    "index_add": lambda: ops.index_add(W, 0, IDS, X),
    "scatter_reduce": lambda: ops.scatter_reduce(V, 0, IDS, X[:, 0], "mean"),
    "embedding": lambda: ops.embedding(IDS, W),
    "embedding_bag": lambda: ops.embedding_bag(W, IDS, IDS[:2], mode="max"),
    "token_logprob": lambda: ops.token_logprob(X, IDS),
    "moe": lambda: ops.moe(X, *EXPERTS, CHOSEN, SHARES),
    "router_topk": lambda: ops.router_topk(X, 2),
    "exact.linear": lambda: ops.exact.linear(X, W, B),
    "exact.matmul": lambda: ops.exact.matmul(X, W.t()),
    "exact.attention": lambda: ops.exact.attention(HEADS, HEADS, HEADS),
    "exact.sum": lambda: ops.exact.sum(X, 1),
    "exact.mean": lambda: ops.exact.mean(X.t(), 1),
    "exact.vector_norm": lambda: ops.exact.vector_norm(X),
    "exact.softmax": lambda: ops.exact.softmax(X),
    "exact.logsumexp": lambda: ops.exact.logsumexp(X, 0),
    "exact.layer_norm": lambda: ops.exact.layer_norm(X, V, V),
    "exact.row_parallel_linear": lambda: ops.exact.row_parallel_linear(X, W, B),
    "exact.all_reduce": lambda: ops.exact.all_reduce(X),
    "augmented_addition": lambda: sb.augmented_addition(X, POSITIVE),
    "binned_sum": lambda: sb.binned_sum(X, 1),
}


def tensors(y: object) -> Iterator[torch.Tensor]:
    if isinstance(y, torch.Tensor):
        yield y
    elif isinstance(y, tuple):
        for part in y:
            yield from tensors(part)


def same(name: str, expected: list[torch.Tensor]) -> None:
    found = list(tensors(CALLS[name]()))
    assert len(found) == len(expected) > 0
    for y, want in zip(found, expected, strict=True):
        assert y.device == want.device and y.dtype is want.dtype
        assert bits.equal(y, want) if y.is_floating_point() else torch.equal(y, want)


#: Without a portable contract.
DEVICE = {"packed linear", "moe"}


@pytest.mark.parametrize(
    ("name", "contract"),
    [(n, c) for n in CALLS for c in ("device", "portable") if c == "device" or n not in DEVICE],
)
def test_defaults(name: str, contract: str) -> None:
    with sb.deterministic(contract=contract):
        expected = list(tensors(CALLS[name]()))
    with sb.deterministic(contract=contract), torch.device("meta"):
        same(name, expected)
    before = torch.get_default_dtype()
    for dtype in (torch.bfloat16, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            with sb.deterministic(contract=contract):
                same(name, expected)
        finally:
            torch.set_default_dtype(before)
