"""Group W: convolutions, recurrent layers and attention modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from faults.properties import (
    FLOATS,
    Pairs,
    every,
    holds,
    position,
    row,
    stock_fails,
    threads,
    values,
)


def fixed(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module with fixed weights of a moderate size, without gradients."""
    module.requires_grad_(False)
    for seed, p in enumerate(module.parameters()):
        p.copy_(values(*p.shape, seed=seed) * max(p[0].numel(), 1) ** -0.5)
    return module.to(dtype).eval()


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "3x3": (lambda: nn.Conv2d(24, 32, 3, padding=1), (8, 24, 14, 14)),
    "1x1": (lambda: nn.Conv2d(24, 32, 1), (8, 24, 14, 14)),
    "strided": (lambda: nn.Conv2d(3, 40, 7, stride=2, padding=3), (8, 3, 31, 31)),
    "dilated": (lambda: nn.Conv2d(16, 24, 3, dilation=2), (8, 16, 15, 15)),
    "grouped": (lambda: nn.Conv2d(24, 48, 3, groups=4), (8, 24, 9, 9)),
    "depthwise": (lambda: nn.Conv2d(48, 48, 7, padding=3, groups=48), (8, 48, 14, 14)),
    "patches": (lambda: nn.Conv2d(3, 96, 16, 16), (8, 3, 32, 32)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_w1_conv2d_of_any_batch(name: str, dtype: torch.dtype) -> None:
    make, shape = CONVOLUTIONS[name]
    conv, x = fixed(make(), dtype), values(*shape, dtype=dtype)

    def pairs() -> Pairs:
        yield from row(conv, x, (1, 2, 3))
        yield from position(conv, x[:3])
        yield from threads(lambda: conv(x))
        channels_last = x.to(memory_format=torch.channels_last)
        yield "channels last", conv(x), conv(channels_last)
        yield "no batch axis", conv(x)[0], conv(x[0])

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_w2_conv1d_of_any_batch(dtype: torch.dtype) -> None:
    conv = fixed(nn.Conv1d(256, 512, 3), dtype)
    x = values(20, 256, 25, dtype=dtype)

    def pairs() -> Pairs:
        yield from row(conv, x, (1, 2, 5))
        yield "shorter", conv(x)[:, :, :9], conv(x[:, :, :11])

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


class ConvNeXt(nn.Module):
    """Two blocks of a ConvNeXt between a patch stem and a pooled head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.mix = nn.ModuleList(
            nn.Conv2d(width, width, 7, padding=3, groups=width) for _ in range(2)
        )
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(2))
        self.shrink = nn.Conv2d(width, 2 * width, 2, 2)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for mix, norm, up, down in zip(self.mix, self.norm, self.up, self.down, strict=True):
            y = norm(mix(x).permute(0, 2, 3, 1))
            x = x + down(F.gelu(up(y))).permute(0, 3, 1, 2)
        return self.head(self.shrink(x).mean((2, 3)))


class ResNet(nn.Module):
    """A residual block with batch norm in inference mode and pooling."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.a = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.b = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norms[0](self.first(x))), 3, 2, 1)
        y = F.relu(self.norms[1](self.a(x)))
        x = F.relu(x + self.norms[2](self.b(y)))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("make", [ConvNeXt, ResNet])
@pytest.mark.parametrize("dtype", FLOATS)
def test_w4_image_classifiers(make: type[nn.Module], dtype: torch.dtype) -> None:
    net = fixed(make(), dtype)
    images = values(8, 3, 48, 48, dtype=dtype)

    def pairs() -> Pairs:
        yield from row(net, images, (1, 2, 3))
        yield from position(net, images[:3])

    if make is ConvNeXt and dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM", "bidirectional LSTM"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_w5_recurrent_layers(kind: str, dtype: torch.dtype) -> None:
    make = getattr(nn, kind.rpartition(" ")[2])
    net = fixed(make(40, 48, 2, batch_first=True, bidirectional=" " in kind), dtype)
    x = values(8, 21, 40, dtype=dtype)
    f = lambda t: net(t)[0]  # noqa: E731

    def pairs() -> Pairs:
        yield from row(f, x, (1, 2, 5))
        yield from position(f, x[:3])
        yield "no batch axis", f(x)[0], f(x[0])
        if " " in kind:
            return
        y, state = net(x)
        pieces, s = [], None
        for piece in x.split(4, 1):
            out, s = net(piece, s)
            pieces.append(out)
        yield "in steps of 4", y, torch.cat(pieces, 1)
        last = (state, s) if kind != "LSTM" else (state[0], s[0])
        yield "state", *last

    if dtype is torch.float32 and kind in ("GRU", "LSTM"):
        stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("cell", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
@pytest.mark.parametrize("dtype", FLOATS)
def test_w5_recurrent_cells(cell: type[nn.Module], dtype: torch.dtype) -> None:
    net = fixed(cell(40, 48), dtype)

    def step(x: torch.Tensor) -> torch.Tensor:
        out = net(x)
        return out[0] + out[1] if isinstance(out, tuple) else out

    holds(lambda: every(step, values(17, 40, dtype=dtype), (1, 2, 5, 8)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_w5_multihead_attention(dtype: torch.dtype) -> None:
    net = fixed(nn.MultiheadAttention(48, 4, batch_first=True), dtype)
    x = values(8, 21, 48, dtype=dtype)
    padding = torch.arange(21)[None] >= torch.arange(14, 22)[:, None]

    def pairs() -> Pairs:
        for weights in (False, True):
            f = lambda t: net(t, t, t, need_weights=weights)[0]  # noqa: E731, B023
            yield from row(f, x, (1, 2, 5))
        masked = net(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        alone = net(x[:1, :14], x[:1, :14], x[:1, :14], need_weights=False)[0]
        yield "padding", alone, masked[:1, :14]
        _, shown = net(x, x, x)
        yield "weights", shown[:1], net(x[:1], x[:1], x[:1])[1]

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_w5_encoder_layer_of_torch(dtype: torch.dtype) -> None:
    """torch's own encoder, whose fused path the switch turns off."""
    layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, activation="gelu")
    net = fixed(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), dtype)
    x = values(8, 21, 48, dtype=dtype)

    def pairs() -> Pairs:
        yield from row(net, x, (1, 2, 5))
        yield from position(net, x[:3])

    holds(pairs)
