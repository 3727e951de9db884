"""A thread that flushes subnormals to zero gets the same bits, and goes on flushing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import samebits as sb
from samebits import bits, ops

TINY = torch.randn(4, 64) * 2.0**-140
NEAR, W, B = torch.randn(4, 64) * 2.0**-75, torch.randn(3, 64), torch.randn(3) * 2.0**-140
Q, V, MASK = (torch.randn(1, 2, 4, 64) * 2.0**e for e in (-70, -140, -140))
FAR = torch.cat([torch.randn(4, 32), torch.randn(4, 32) - 95], 1)
ROW = torch.zeros(1, 200_000)
ROW[0, ::3], ROW[0, 150_000] = -1, 2.0**-140  # the maximum, in a later segment
CALLS: dict[str, Callable[[], torch.Tensor]] = {
    "linear": lambda: ops.exact.linear(NEAR, NEAR),
    "sum": lambda: ops.exact.sum(TINY, 1),
    "columns": lambda: ops.exact.all_reduce(TINY),
    "mean": lambda: ops.exact.mean(TINY, 1),
    "vector_norm": lambda: ops.exact.vector_norm(TINY, 1),
    "softmax": lambda: ops.exact.softmax(FAR),
    "log_softmax": lambda: ops.exact.log_softmax(TINY),
    "log_softmax of a long row": lambda: ops.exact.log_softmax(ROW),
    "rms_norm": lambda: ops.exact.rms_norm(TINY, None, 0.0),
    "layer_norm": lambda: ops.exact.layer_norm(TINY, W[0], W[1], 0.0),
    "attention": lambda: ops.exact.attention(Q, Q, V),
    "attention with a mask": lambda: ops.exact.attention(Q, Q, V, mask=MASK[0, 0, :, :4]),
    "row_parallel_linear": lambda: ops.exact.row_parallel_linear(TINY, W, B),
    "row_parallel_linear of nothing": lambda: ops.exact.row_parallel_linear(
        TINY[:, :0], W[:, :0], B
    ),
    "what integers decide": lambda: ops.exact.row_parallel_linear(
        torch.tensor([[1.0, 1.0, 2.0**-74]]), torch.tensor([[1.0, -1.0, 2.0**-75]])
    ),
    "binned_sum": lambda: sb.binned_sum(TINY, 1),
    "augmented_addition": lambda: torch.stack(sb.augmented_addition(TINY, TINY.flip(0))),
    "augmented_multiplication": lambda: torch.stack(sb.augmented_multiplication(NEAR, NEAR)),
}


@pytest.fixture
def flushing() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_subnormals_stay(name: str, threads: int, flushing: None) -> None:
    torch.set_num_threads(threads)
    want = CALLS[name]()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    got = CALLS[name]()
    flushes = (torch.tensor([1], dtype=torch.int32).view(torch.float32) * 1.0).item() == 0
    torch.set_flush_denormal(False)
    assert flushes and bits.equal(got, want)
