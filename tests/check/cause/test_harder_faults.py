"""Planted faults whose cause is not where bits part first, or is easily taken for another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import planted
import pytest
import torch
from planted import WIDTH, Stack, values
from torch import Tensor, nn
from torch.nn import functional

import samebits as sb
from samebits.check import Explanation, explain
from samebits.mode import stock

_draw = torch.Generator().manual_seed(3)


@torch.library.custom_op("harder::into", mutates_args=("out",))
def into(out: Tensor, x: Tensor, w: Tensor) -> None:
    """Writes x w^T to `out`, in two parts below 8 rows, and returns nothing."""
    out.copy_(planted._halves(x, w) if len(x) < 8 else planted._rows(x, w))


@torch.library.custom_op("harder::losing", mutates_args=("out",))
def losing(out: Tensor, x: Tensor, w: Tensor) -> None:
    """The same, and every third time some columns are lost."""
    y = planted._rows(x, w)
    y[:, :8] *= float(torch.randint(3, (1,), generator=_draw) > 0)
    out.copy_(y)


@torch.library.custom_op("harder::scores", mutates_args=())
def scores(q: Tensor, k: Tensor) -> Tensor:
    """q k^T of each request, with tf32 from 8 requests on."""
    if len(q) >= 8:
        q, k = planted._tf32(q), planted._tf32(k)
    return (q.double() @ k.double().mT).float()


@torch.library.custom_op("harder::topk", mutates_args=())
def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The largest; of equal ones the first in single requests, the last in batches."""
    x = x if len(x) == 1 else x.flip(-1)
    index = torch.sort(x, dim=-1, descending=True, stable=True)[1][:, :k]
    found = x.gather(-1, index)
    return found, index if len(x) == 1 else x.shape[-1] - 1 - index


@torch.library.custom_op("harder::splits", mutates_args=())
def splits(q: Tensor, k: Tensor, num_splits: int) -> Tensor:
    """q k^T k in fp32, its last sum in some parts."""
    scores = q @ k.mT
    pairs = zip(scores.chunk(num_splits, -1), k.chunk(num_splits, -2), strict=True)
    return torch.stack([(a.double() @ b.double()).float() for a, b in pairs]).sum(0)


TWINS = {
    **planted.TWINS,
    "harder::scores": lambda q, k: (q.double() @ k.double().mT).float(),
}


class Layer(nn.Module):
    """The faults are in the forward of the classes below.

    Its product is in binary64 and not hidden in a kernel: its last bits depend on the number of
    rows, and rounding to fp32 loses that. It must not be blamed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(values(WIDTH, WIDTH, seed=9) / WIDTH**0.5)

    def product(self, x: Tensor) -> Tensor:
        return planted._rows(x, self.weight)


class Softmax16(Layer):
    def forward(self, x: Tensor) -> Tensor:
        h = self.product(x)
        return h * torch.softmax(h.bfloat16() if len(x) > 4 else h, -1)


class Cache8(Layer):
    def forward(self, x: Tensor) -> Tensor:
        h = self.product(x)
        return x * torch.tanh(h.to(torch.float8_e4m3fn).float() if len(x) > 4 else h)


class Epsilon(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(self.product(x), (WIDTH,), eps=1e-3 if len(x) > 4 else 1e-5)


class Scale8(Layer):
    def forward(self, x: Tensor) -> Tensor:
        h = self.product(x)
        scale = h.abs().max() / 127
        return (h / scale).round() * scale


class Into(Layer):
    kernel = "into"

    def forward(self, x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        getattr(torch.ops.harder, self.kernel)(y, x, self.weight)
        return y


class Losing(Into):
    kernel = "losing"


class Scores(Layer):
    def forward(self, x: Tensor) -> Tensor:
        q = x.unflatten(-1, (8, 16))
        return functional.pad(torch.ops.harder.scores(q, q).flatten(1), (0, WIDTH - 64))


class Splits(Layer):
    def forward(self, x: Tensor) -> Tensor:
        q = x.unflatten(-1, (8, 16))
        return torch.ops.harder.splits(q, q, 1 if len(x) > 4 else 4).flatten(1)


class Ranks(Layer):
    """Adds the parts that ranks would compute."""

    def parts(self, x: Tensor) -> list[Tensor]:
        pairs = zip(x.chunk(4, 1), self.weight.chunk(4, 1), strict=True)
        return [planted._rows(a, b) for a, b in pairs]


class RanksInOrder(Ranks):
    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.parts(x)[:: -1 if len(x) > 4 else 1]
        for part in rest:
            first = first + part
        return first


class RanksInHalf(Ranks):
    def forward(self, x: Tensor) -> Tensor:
        parts = self.parts(x)
        return torch.stack([p.half().float() for p in parts] if len(x) > 4 else parts).sum(0)


class Overlapping(Layer):
    """Adds a result to itself, one place on, in wide batches."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x)
        if len(x) > 4:
            y = y.clone()
            y.view(-1)[1:].add_(1e-3 * x.reshape(-1)[:-1])
        return y


class Router(Layer):
    def forward(self, x: Tensor) -> Tensor:
        _, index = torch.ops.harder.topk(x[:, :16].round(), 4)
        places = self.weight[0][index] * torch.arange(4)
        return self.product(x) * (1 + places.sum(-1, keepdim=True))


class Pages(Layer):
    """Sums pages of which it wrote half, out of place."""

    def forward(self, x: Tensor) -> Tensor:
        half = len(x) // 2
        pages = torch.ops.planted.empty(x).index_copy(0, torch.arange(half), x[:half])
        return self.product(x) + 1e-3 * pages.sum(0)


class OwnGenerator(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x) + torch.randn(x.shape, generator=self.generator)


@pytest.mark.parametrize(
    ("layer", "few", "op", "kind", "detail", "trigger"),
    [
        (Softmax16, 2, "aten._softmax", "precision", "dtype", "dtype"),
        (Cache8, 2, "aten.tanh", "precision", "e4m3", "dtype"),
        (Epsilon, 2, "aten.native_layer_norm", "semantics", "eps", "eps"),
        (Scale8, 2, "aten.div.Tensor", "scale", "operand", "neighbours"),
        (Into, 2, "harder.into", "reordering", "kernel", "rows"),
        (Losing, 16, "harder.losing", "memory", "race", "repeat"),
        (Scores, 2, "harder.scores", "precision", "tf32", "rows"),
        (Splits, 2, "harder.splits", "reordering", "other kernel", "num_splits"),
        (RanksInOrder, 2, "aten.add.Tensor", "reordering", "order", None),
        (RanksInHalf, 2, "aten.sum.dim_IntList", "precision", "dtype", "dtype"),
        (Overlapping, 2, "aten.clone", "semantics", "other kernel", None),
        (Router, 1, "harder.topk", "ties", "order", "rows"),
        (Pages, 16, "aten.add.Tensor", "memory", "uninitialised", "history"),
        (OwnGenerator, 16, "aten.randn.generator", "random", "state", "seed"),
    ],
)
def test_the_cause_is_named(
    layer: type[Layer], few: int, op: str, kind: str, detail: str, trigger: str | None
) -> None:
    model, x = Stack(layer()).requires_grad_(False), values(16, WIDTH)
    x[-1] *= 4
    found = explain(model, x[:few], x, align=(0, 0), twins=TWINS)
    expect(found, "layers.2", op, kind, detail, trigger)
    assert found.passes < 20


def expect(
    found: Explanation, module: str, op: str, kind: str, detail: str, trigger: str | None
) -> None:
    place = found.place
    assert place is not None and place.op is not None
    assert (place.module, place.op.removesuffix(".default")) == (module, op), found
    assert (found.kind, found.detail, found.trigger) == (kind, detail, trigger), found


def test_the_switch_off_inside_one_layer() -> None:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).requires_grad_(False)
    x = values(8, WIDTH)

    def run(off: bool) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with sb.deterministic(), ExitStack() as stack:
                hooks = (
                    model[1].register_forward_pre_hook(
                        lambda *_: stack.enter_context(stock()) and None if off else None
                    ),
                    model[1].register_forward_hook(lambda *_: stack.close()),
                )
                try:
                    return model(x)
                finally:
                    for hook in hooks:
                        hook.remove()

        return call

    found = explain(model, run(False), run(True))
    expect(found, "1", "samebits.linear", "configuration", "late switch", "setting")


class Drawing(Layer):
    """Draws, counts and hands out memory, and lets none of it into its result."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(3)
        self.calls += 1
        y = torch.empty_like(x)
        return y.copy_(self.product(x))


@pytest.mark.parametrize("few", [2, 16])
def test_what_does_not_reach_the_result_is_clean(few: int) -> None:
    model, x = Stack(Drawing()).requires_grad_(False), values(16, WIDTH)
    assert explain(model, x[:few], x, align=(0, 0)).verdict == "equal"
