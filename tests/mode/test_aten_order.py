"""The overrides of mode/aten/order.py, called as users call them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from samebits import bits
from samebits.errors import UncoveredError


def test_ties_in_ordinary_calls() -> None:
    x = torch.zeros(16)
    with sb.deterministic():
        assert x.topk(8).indices.tolist() == list(range(8))
        assert torch.topk(x, 3, largest=False).indices.tolist() == [0, 1, 2]
        assert x.sort(descending=True).indices.tolist() == list(range(16))
        assert x.argsort().tolist() == list(range(16))
        assert torch.sort(x, stable=False).indices.tolist() == list(range(16))
        assert int(x.kthvalue(3).indices) == 2
        assert int(x.argmax()) == 0
        assert torch.tensor([1, 1, 0]).topk(2).indices.tolist() == [0, 1]


def test_scattered_sums_for_any_number_of_threads() -> None:
    index, src = torch.arange(2**18) % 64, torch.randn(2**18)
    threads = torch.get_num_threads()
    seen = []
    try:
        for n in (1, 2, 8):
            torch.set_num_threads(n)
            with sb.deterministic():
                x = torch.zeros(64)
                x[index] = x[index] * 0  # an ordinary index_put still works
                seen.append(
                    [
                        torch.index_put(x, (index,), src, accumulate=True),
                        torch.index_add(x, 0, index, src),
                        x.scatter_add(0, index, src),
                        torch.bincount(index, weights=src),
                        x.put(index, src, accumulate=True),
                        torch.histogram(src, 9, weight=src).hist,
                    ]
                )
    finally:
        torch.set_num_threads(threads)
    for results in seen[1:]:
        for a, b in zip(seen[0], results, strict=True):
            assert bits.equal(a, b)
    assert all(bits.equal(seen[0][0], other) for other in seen[0][1:5])


def test_integers_stay_exact() -> None:
    with sb.deterministic():
        x = torch.zeros(3, dtype=torch.int64)
        index = torch.tensor([0, 2, 2])
        assert x.index_add(0, index, torch.tensor([1, 2, 3])).tolist() == [1, 0, 5]
        assert torch.bincount(index).tolist() == [1, 0, 2]
        assert x.scatter_add(0, index, index).tolist() == [0, 0, 4]


def test_complex_is_refused() -> None:
    x = torch.zeros(3, dtype=torch.complex64)
    with sb.deterministic(), pytest.raises(UncoveredError, match="index_add"):
        x.index_add(0, torch.tensor([0]), x[:1])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag_gradients(mode: str) -> None:
    items, offsets = torch.tensor([1, 2, 2, 0, 4]), torch.tensor([0, 3, 3])
    table = torch.randn(5, 6)

    def gradient(weight: torch.Tensor) -> torch.Tensor:
        weight = weight.clone().requires_grad_()
        out = F.embedding_bag(items, weight, offsets, mode=mode)
        (out * torch.arange(18.0).view(3, 6)).sum().backward()
        assert weight.grad is not None
        return weight.grad

    stock = gradient(table)
    with sb.deterministic():
        ours = gradient(table)
    torch.testing.assert_close(ours, stock)


def test_embedding_gradient_has_an_order() -> None:
    table = torch.randn(5, 6)
    items = torch.randint(0, 5, (200,))
    up = torch.randn(200, 6)

    def gradient() -> torch.Tensor:
        weight = table.clone().requires_grad_()
        F.embedding(items, weight, padding_idx=2).backward(up)
        assert weight.grad is not None
        return weight.grad

    with sb.deterministic():
        ours = gradient()
    want = torch.zeros(5, 6)
    for item, row in zip(items.tolist(), up, strict=True):
        if item != 2:
            want[item] += row
    assert bits.equal(ours, want)
