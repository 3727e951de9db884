"""Small models with exactly one fault each, and clean ones that only look faulty.

Operations of ``planted::`` stand for kernels: nothing inside them is seen from outside.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

WIDTH = 128


def values(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers of a seed of their own."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def restart() -> None:
    """Lets the atomic kernel start alike, whatever ran before."""
    _order.manual_seed(1)


@torch.library.custom_op("planted::split_k", mutates_args=())
def split_k(x: Tensor, w: Tensor) -> Tensor:
    """Cuts K in two below 8 rows."""
    if len(x) >= 8:
        return _rows(x, w)
    return _halves(x, w)


@torch.library.custom_op("planted::blocked", mutates_args=())
def blocked(x: Tensor, w: Tensor) -> Tensor:
    """Adds in blocks of 32 terms, from 256 rows on of 64."""
    size = 64 if len(x) >= 256 else 32
    parts = [_rows(a, b) for a, b in zip(x.split(size, 1), w.split(size, 1), strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


_order = torch.Generator().manual_seed(1)
_calls = itertools.count()


@torch.library.custom_op("planted::atomic", mutates_args=())
def atomic(x: Tensor, w: Tensor) -> Tensor:
    """Adds eight partial results in an order that changes from call to call."""
    parts = [_rows(a, b) for a, b in zip(x.chunk(8, 1), w.chunk(8, 1), strict=True)]
    total = torch.zeros_like(parts[0])
    for i in torch.randperm(8, generator=_order).tolist():
        total = total + parts[i]
    return total


@torch.library.custom_op("planted::racing", mutates_args=())
def racing(x: Tensor, w: Tensor) -> Tensor:
    """Loses one of eight partial results, another one in every call, in each ninth none."""
    parts = [_rows(a, b) for a, b in zip(x.chunk(8, 1), w.chunk(8, 1), strict=True)]
    lost = next(_calls) % 9
    return torch.stack([p for i, p in enumerate(parts) if i != lost]).sum(0)


@torch.library.custom_op("planted::dynamic", mutates_args=())
def dynamic(x: Tensor, w: Tensor) -> Tensor:
    """An 8-bit product with one scale for the whole batch."""
    scale = x.abs().max() / 127
    return _rows((x / scale).round() * scale, w)


@torch.library.custom_op("planted::tf32", mutates_args=())
def tf32(x: Tensor, w: Tensor) -> Tensor:
    """Takes the tensor core from 16 rows on."""
    return _rows(_tf32(x), _tf32(w)) if len(x) >= 16 else _rows(x, w)


@torch.library.custom_op("planted::partials", mutates_args=())
def partials(x: Tensor, w: Tensor) -> Tensor:
    """Rounds four partial sums to bf16 below 8 rows."""
    if len(x) >= 8:
        return _rows(x, w)
    parts = [_rows(a, b).bfloat16() for a, b in zip(x.chunk(4, 1), w.chunk(4, 1), strict=True)]
    return torch.stack(parts).float().sum(0)


@torch.library.custom_op("planted::other_tie", mutates_args=())
def other_tie(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest element: of equal ones the last, from 4 rows on."""
    last = x.shape[-1] - 1 - x.flip(-1).argmax(-1)
    index = x.argmax(-1) if len(x) < 4 else last
    return x.gather(-1, index[:, None])[:, 0], index


@torch.library.custom_op("planted::leaking", mutates_args=())
def leaking(x: Tensor, w: Tensor) -> Tensor:
    """Multiplies the next row by zero and adds it."""
    return _rows(x, w) + 0.0 * _rows(x.roll(-1, 0), w)


@torch.library.custom_op("planted::threaded", mutates_args=())
def threaded(x: Tensor, w: Tensor) -> Tensor:
    """Gives each thread a part of K."""
    count = torch.get_num_threads()
    parts = zip(x.chunk(count, 1), w.chunk(count, 1), strict=True)
    return torch.stack([_rows(a, b) for a, b in parts]).sum(0)


@torch.library.custom_op("planted::tail", mutates_args=())
def tail(x: Tensor, w: Tensor) -> Tensor:
    """Computes rows past the last tile of 8 in another order."""
    whole = len(x) // 8 * 8
    return torch.cat([_rows(x[:whole], w), _halves(x[whole:], w)])


@torch.library.custom_op("planted::strided", mutates_args=())
def strided(x: Tensor, w: Tensor) -> Tensor:
    """Has another kernel for rows that are not contiguous."""
    return _rows(x, w) if x.is_contiguous() else _halves(x, w)


_last = {"rows": 0}


@torch.library.custom_op("planted::remembering", mutates_args=())
def remembering(x: Tensor, w: Tensor) -> Tensor:
    """Keeps the order of summation that suited the call before, as a cached choice would."""
    wide, _last["rows"] = _last["rows"] >= 256, len(x)
    return _halves(x, w) if wide else _rows(x, w)


_left = itertools.cycle((0.5, -1.0, 0.25))


@torch.library.custom_op("planted::empty", mutates_args=())
def empty(x: Tensor) -> Tensor:
    """Memory of the size of `x` that holds what another request left there, and nothing else."""
    return torch.full_like(x, next(_left))


def _rows(x: Tensor, w: Tensor) -> Tensor:
    """x w^T in fp32, every row by itself: in binary64 and rounded once, so without an order."""
    return (x.double() @ w.double().mT).to(x.dtype)


def _halves(x: Tensor, w: Tensor) -> Tensor:
    """The same in two parts of K."""
    half = x.shape[1] // 2
    return _rows(x[:, half:], w[:, half:]) + _rows(x[:, :half], w[:, :half])


def _tf32(x: Tensor) -> Tensor:
    """Ten fraction bits."""
    words = x.contiguous().view(torch.int32)
    return ((words + 0x1000) & ~0x1FFF).view(torch.float32)


TWINS = {
    "planted::split_k": _rows, "planted::blocked": _rows, "planted::atomic": _rows,
    "planted::racing": _rows, "planted::tf32": _rows, "planted::partials": _rows,
    "planted::remembering": _rows, "planted::dynamic": _rows,
    "planted::threaded": _rows, "planted::tail": _rows, "planted::strided": _rows,
}  # fmt: skip


class Product(nn.Module):
    """A product by one of the kernels above."""

    def __init__(self, kernel: str, seed: int, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(values(width, width, seed=seed) / width**0.5)
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] times the weight."""
        flat = x.reshape(-1, x.shape[-1])
        op = getattr(torch.ops.planted, self.kernel)
        return op(flat, self.weight).reshape(*x.shape[:-1], -1)


class Exact(Product):
    """A product whose rows do not depend on anything."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] times the weight, row by row."""
        return _rows(x.reshape(-1, x.shape[-1]), self.weight).reshape(*x.shape[:-1], -1)


class Stack(nn.Module):
    """Layers of exact products around one faulty layer, which is called ``layers.2``."""

    def __init__(self, faulty: nn.Module, depth: int = 4) -> None:
        super().__init__()
        layers: list[nn.Module] = [Exact("", seed) for seed in range(depth)]
        layers[2] = faulty
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, **how: object) -> Tensor:
        """Residual layers."""
        for i, layer in enumerate(self.layers):
            y = layer(x, **how) if i == 2 else layer(x)
            x = x + torch.relu(y) if y.shape == x.shape else y
        return x
