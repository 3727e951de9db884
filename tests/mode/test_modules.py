"""Modules under the switch: a sample's result and gradient do not depend on the batch (W5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import samebits as sb
from samebits import bits


class Apply(nn.Module):
    """A module with a function around it."""

    def __init__(self, module: nn.Module, call: Callable[[nn.Module, torch.Tensor], torch.Tensor]):
        super().__init__()
        self.module, self.call = module, call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.module, x)


def attention(weights: bool) -> nn.Module:
    module = nn.MultiheadAttention(64, 4, batch_first=True)
    return Apply(module, lambda m, x: m(x, x, x, need_weights=weights)[0])


def recurrent(module: nn.Module) -> nn.Module:
    return Apply(module, lambda m, x: m(x)[0])


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (
        lambda: nn.Sequential(
            nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 8), nn.Softmax(-1)
        ),
        (64,),
    ),
    "activations": (
        lambda: nn.Sequential(
            nn.Linear(64, 63),
            nn.Tanh(),
            nn.SiLU(),
            nn.Softplus(),
            nn.Mish(),
            nn.ELU(),
            nn.Hardswish(),
            nn.LogSoftmax(-1),
        ),
        (64,),
    ),
    "gru": (lambda: recurrent(nn.GRU(64, 96, 2, batch_first=True)), (12, 64)),
    "lstm": (lambda: recurrent(nn.LSTM(64, 96, bidirectional=True, batch_first=True)), (12, 64)),
    "rnn": (lambda: recurrent(nn.RNN(64, 96, batch_first=True)), (12, 64)),
    "attention": (lambda: attention(False), (12, 64)),
    "attention with weights": (lambda: attention(True), (12, 64)),
    "encoder": (lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (12, 64)),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.Conv1d(64, 16, 3, stride=2)
        ),
        (32, 25),
    ),
    "conv2d": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, groups=4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        ),
        (3, 16, 16),
    ),
    "transposed": (lambda: nn.ConvTranspose1d(32, 16, 4, stride=2), (32, 25)),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.PReLU()),
        (3, 16, 16),
    ),
}
#: Known to fail on stock torch for float32, whatever its vector code.
STOCK_FAILS = ("mlp", "gru", "rnn", "conv1d")


@pytest.fixture(params=MODULES)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    make, shape = MODULES[request.param]
    yield request.param, make().eval(), torch.randn(8, *shape)


def gradient(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (out,) = torch.autograd.grad(module(x).square().sum(), x)
    return out


def test_a_sample_by_itself(case: tuple[str, nn.Module, torch.Tensor]) -> None:
    name, module, x = case
    with torch.no_grad():
        stock = module(x)
        broken = sum(not bits.equal(module(x[i : i + 1]), stock[i : i + 1]) for i in range(8))
    if name in STOCK_FAILS:
        assert broken, "stock torch is expected to depend on the batch here"
    with sb.deterministic():
        with torch.no_grad():
            full = module(x)
            for start, stop in ((0, 1), (3, 4), (7, 8), (0, 3), (2, 7)):
                assert bits.equal(module(x[start:stop]), full[start:stop])
        assert torch.allclose(full, stock, atol=1e-5)
        with torch.inference_mode():
            assert bits.equal(module(x).clone(), full)
        grads = gradient(module, x)
        for i in (0, 3, 7):
            assert bits.equal(gradient(module, x[i : i + 1]), grads[i : i + 1])
    with torch.no_grad():
        assert bits.equal(module(x), stock), "stock bits are restored"
