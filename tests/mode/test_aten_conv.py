"""Convolutions under the switch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from matrix_samples import DTYPES, values
from samebits import bits, ops
from samebits.errors import UncoveredError


@pytest.fixture
def switch() -> Iterator[None]:
    with sb.deterministic():
        yield


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_and_modules(dtype: torch.dtype, switch: None) -> None:
    x, w = values((6, 8, 12), dtype, "normal", 1), values((10, 8, 3), dtype, "normal", 2)
    b = values((10,), dtype, "normal", 3)
    want = ops.conv1d(x, w, b, 2, 1)
    assert bits.equal(F.conv1d(x, w, b, 2, 1), want)
    layer = torch.nn.Conv1d(8, 10, 3, 2, 1, dtype=dtype)
    layer.weight.data, layer.bias.data = w, b
    assert bits.equal(layer(x).detach(), want)
    assert bits.equal(torch.vmap(lambda a: F.conv1d(a[None], w, b, 2, 1)[0])(x), want)
    image = x[..., None]
    kernel = w[..., None]
    assert bits.equal(F.conv2d(image, kernel, b, (2, 1), (1, 0))[..., 0], want)
    up = F.conv_transpose1d(x, w.transpose(0, 1), stride=2)
    assert bits.equal(up, ops.conv_transpose1d(x, w.transpose(0, 1), stride=2))


def test_gradients(switch: None) -> None:
    x, w, b = torch.randn(4, 3, 9, 9), torch.randn(5, 3, 3, 3), torch.randn(5)
    theirs, ours = ([t.clone().requires_grad_() for t in (x, w, b)] for _ in range(2))
    F.conv2d(*theirs, padding=1).square().sum().backward()
    y = ops.conv2d(*ours, padding=1)
    y.backward(2 * y.detach())
    for a, t in zip(ours, theirs, strict=True):
        assert a.grad is not None and t.grad is not None
        assert bits.equal(a.grad, t.grad)
    for image in range(4):
        leaf = x[image : image + 1].clone().requires_grad_()
        F.conv2d(leaf, w, b, padding=1).square().sum().backward()
        assert leaf.grad is not None and theirs[0].grad is not None
        assert bits.equal(leaf.grad[0], theirs[0].grad[image])


def test_second_derivative(switch: None) -> None:
    x = torch.randn(1, 2, 5, requires_grad=True)
    w = torch.randn(3, 2, 3, requires_grad=True)
    (g,) = torch.autograd.grad(F.conv1d(x, w).square().sum(), x, create_graph=True)
    g.square().sum().backward()
    assert x.grad is not None and w.grad is not None and w.grad.isfinite().all()


def test_channels_last_keeps_its_format(switch: None) -> None:
    x, w = torch.randn(2, 8, 5, 5), torch.randn(4, 8, 3, 3)
    y = F.conv2d(x.contiguous(memory_format=torch.channels_last), w)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert bits.equal(y, ops.conv2d(x, w))


def test_a_stack_of_layers_over_batches(switch: None) -> None:
    """W4: the kind of network that a batch moves on stock torch."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 4, 4),
        torch.nn.Conv2d(16, 16, 7, padding=3, groups=16),
        torch.nn.Conv2d(16, 64, 1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(64, 16, 1),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 64, 10),
    )
    x = torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        full = net(x)
        for count in (1, 2, 3, 7):
            assert bits.equal(net(x[:count]), full[:count])


def test_double_is_refused(switch: None) -> None:
    with pytest.raises(UncoveredError, match="float64"):
        F.conv1d(torch.randn(1, 2, 5).double(), torch.randn(3, 2, 3).double())
