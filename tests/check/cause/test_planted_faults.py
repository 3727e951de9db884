"""Every kind of fault, planted alone in a small model: operation, kind and trigger are named."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import planted
import pytest
import torch
from planted import WIDTH, Product, Stack, values
from torch import Tensor, nn
from torch.nn import functional

import samebits as sb
from samebits.check import Explanation, explain


def batches(few: int, many: int) -> tuple[Tensor, Tensor]:
    x = values(many, WIDTH)
    x[-1] *= 4
    return x[:few], x


@pytest.mark.parametrize(
    ("kernel", "few", "many", "kind", "detail", "trigger"),
    [
        ("split_k", 1, 16, "reordering", "kernel", "rows"),
        ("blocked", 8, 300, "reordering", "kernel", "rows"),
        ("atomic", 8, 8, "reordering", "atomic", "repeat"),
        ("racing", 8, 8, "memory", "race", "repeat"),
        ("dynamic", 4, 16, "scale", "neighbours", "neighbours"),
        ("tf32", 4, 32, "precision", "tf32", "rows"),
        ("partials", 4, 32, "precision", "16-bit partial sums (4 parts)", "rows"),
    ],
)
def test_kernels(kernel: str, few: int, many: int, kind: str, detail: str, trigger: str) -> None:
    planted.restart()
    model = Stack(Product(kernel, 9))
    x, y = batches(few, many)
    found = explain(model, x, y, align=(0, 0), twins=planted.TWINS)
    assert found.place is not None
    assert (found.place.module, found.place.op) == ("layers.2", f"planted.{kernel}.default")
    assert (found.kind, found.detail, found.trigger) == (kind, detail, trigger), found
    assert found.allowed == (kind == "reordering")
    assert found.place.site is not None and found.place.site.endswith("planted.py:" + _line())
    assert found.amount is not None and found.amount.differing > 0


def _line() -> str:
    """The line of `planted.Product.forward` that calls the kernel."""
    lines, start = inspect.getsourcelines(Product.forward)
    return str(start + next(i for i, line in enumerate(lines) if "op(flat" in line))


class Layer(nn.Module):
    """Width to width; the faults are in the forward of the classes below."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(values(WIDTH, WIDTH, seed=9) / WIDTH**0.5)

    def product(self, x: Tensor) -> Tensor:
        return planted._rows(x, self.weight)


def run(layer: nn.Module, few: int, many: int, **how: Any) -> Explanation:
    x, y = batches(few, many)
    return explain(Stack(layer), x, y, align=(0, 0), **how)


def expect(found: Explanation, op: str | None, kind: str, detail: str, trigger: str | None) -> None:
    place = found.place
    assert place is not None
    assert place.module == "layers.2", found
    assert (place.op, found.kind, found.detail, found.trigger) == (op, kind, detail, trigger), found
    assert found.cause and Explanation.from_json(found.to_json()) == found


class PerTensorScale(Layer):
    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax() / 127
        return self.product((x / scale).round() * scale)


def test_a_scale_over_the_whole_batch() -> None:
    found = run(PerTensorScale(), 4, 16)
    expect(found, "aten.div.Tensor", "scale", "operand", "neighbours")
    assert any("With the first run's value" in line for line in found.evidence)


class Mask(Layer):
    """Fused attention without a mask, written out with one."""

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        q = x[:, None]
        if attention_mask is None:
            return functional.scaled_dot_product_attention(q, q, q)[:, 0]
        weights = torch.softmax(q @ q.mT * WIDTH**-0.5 + attention_mask, -1)
        return (weights @ q)[:, 0]


def test_a_mask_that_chooses_another_attention() -> None:
    x = values(2, 9, WIDTH)
    zeros = torch.zeros(9, 9)
    model = Stack(Mask())
    found = explain(model, lambda: model(x), lambda: model(x, attention_mask=zeros))
    op = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    expect(found, op, "reordering", "other kernel", "mask")
    assert found.place is not None and "aten._softmax.default" in (found.place.other_op or "")
    assert any("attention_mask: None in the first run" in line for line in found.evidence)


class Unwritten(Layer):
    """Adds the whole of a buffer of which it wrote the first half."""

    def forward(self, x: Tensor) -> Tensor:
        buffer = torch.ops.planted.empty(x)
        buffer[:, : WIDTH // 2] = x[:, : WIDTH // 2]
        return self.product(x + buffer * 2.0**-20)


def test_memory_that_nobody_wrote() -> None:
    found = run(Unwritten(), 8, 8)
    expect(found, "aten.mul.Tensor", "memory", "uninitialised", "history")


class Sampler(Layer):
    """Adds noise that one generator draws for the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x + 0.01 * torch.randn(x.shape))


class Transposed(Layer):
    """The same, drawn in another order."""

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x + 0.01 * torch.randn(x.mT.shape).mT)


@pytest.mark.parametrize(
    ("layer", "op", "detail"),
    [(Sampler, "aten.randn.default", "shape"), (Transposed, "aten.mul.Tensor", "operand")],
)
def test_an_unseeded_neighbour(layer: type[Layer], op: str, detail: str) -> None:
    model, x = Stack(layer()), values(16, WIDTH)

    def seeded(rows: Tensor) -> Callable[[], Tensor]:
        def call() -> Tensor:
            torch.manual_seed(0)
            return model(rows)

        return call

    found = explain(model, seeded(x[:1]), seeded(x.roll(5, 0)), align=(0, 5))
    expect(found, op, "random", detail, "rows")


class Dropout(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.product(functional.dropout(x, 0.1, True))


def test_a_generator_in_another_state() -> None:
    found = run(Dropout(), 8, 8)
    expect(found, "aten.bernoulli_.float", "random", "state", "seed")


def test_seeded_runs_are_equal() -> None:
    model = Stack(Dropout())
    x = values(8, WIDTH)

    def seeded() -> Tensor:
        torch.manual_seed(3)
        return model(x)

    assert explain(model, seeded, seeded).verdict == "equal"


class Tie(Layer):
    def forward(self, x: Tensor) -> Tensor:
        score = x.clamp(max=0.5)
        _, index = torch.ops.planted.other_tie(score)
        return self.product(x.roll(1, -1) * index[:, None])


def test_the_order_of_ties() -> None:
    found = run(Tie(), 3, 8)
    expect(found, "planted.other_tie.default", "ties", "order", "rows")


class Cached(Layer):
    """Keeps keys of the tokens seen so far, and forgets to rotate them when there are several."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        keys = x * self.weight[0]
        self.kept.append(keys if x.shape[1] == 1 or self.kept else keys * (1 + 2.0**-6))
        past = torch.cat(self.kept, 1)
        weights = torch.softmax(x @ past.mT * WIDTH**-0.5, -1)
        return weights @ past


def test_a_wrong_cache() -> None:
    model = Stack(Cached())
    layer: Any = model.layers[2]
    x = values(1, 6, WIDTH)

    def pieces(sizes: list[int]) -> Callable[[], Tensor]:
        def call() -> Tensor:
            layer.kept.clear()
            return torch.cat([model(part) for part in x.split(sizes, 1)], 1)

        return call

    found = explain(model, pieces([1, 1, 1, 1, 1, 1]), pieces([3, 1, 1, 1]))
    assert found.place is not None and found.place.module == "layers.2"
    assert found.kind == "semantics", found


class Scaled(Layer):
    """Another scale when there are many requests."""

    def forward(self, x: Tensor) -> Tensor:
        q = x[:, None, None]
        k = x[:, None].expand(-1, 5, -1)[:, None] * torch.linspace(0, 1, 5)[:, None]
        scale = 0.1 if len(x) < 8 else 0.2
        return functional.scaled_dot_product_attention(q, k, k, scale=scale)[:, 0, 0]


def test_another_scale() -> None:
    found = run(Scaled(), 4, 16)
    op = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    expect(found, op, "semantics", "scale", "scale")
    assert "scale = 0.1" in found.cause and "0.2" in found.cause


class Autocast(Layer):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) >= 8:
            return functional.linear(x.bfloat16(), self.weight.bfloat16()).float()
        return functional.linear(x, self.weight)


def test_another_dtype() -> None:
    found = run(Autocast(), 4, 16)
    assert found.place is not None and found.place.module == "layers.2"
    assert (found.kind, found.detail) == ("precision", "dtype"), found


def test_a_nan_of_a_neighbour() -> None:
    x = values(8, WIDTH)
    x[1, 3] = float("nan")
    found = explain(Stack(Product("leaking", 9)), x[:1], x, align=(0, 0))
    expect(found, "planted.leaking.default", "memory", "nan", "neighbours")


def test_a_choice_kept_from_before() -> None:
    model, other = Stack(Product("remembering", 9)), Product("remembering", 9)
    x, wide = values(8, WIDTH), values(300, WIDTH)

    def after_a_wide_one() -> Tensor:
        other(wide)
        return model(x)

    def first() -> Tensor:
        other(x)
        return model(x)

    found = explain(model, first, after_a_wide_one, twins=planted.TWINS)
    expect(found, "planted.remembering.default", "reordering", "history", "history")


def test_a_late_switch() -> None:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).requires_grad_(False)
    x = values(8, WIDTH)

    def early() -> Tensor:
        with sb.deterministic():
            return model(x)

    def late() -> Tensor:
        with ExitStack() as stack:
            hook = model[2].register_forward_pre_hook(
                lambda *_: stack.enter_context(sb.deterministic()) and None
            )
            stack.callback(hook.remove)
            return model(x)

    found = explain(model, early, late)
    assert found.place is not None and found.place.module == "0"
    assert (found.kind, found.detail) == ("configuration", "late switch"), found
    assert found.trigger == "setting" and not found.allowed


class Experts(Layer):
    """Two experts; how many rows one computes depends on where the neighbours are sent."""

    def __init__(self, scatter: str) -> None:
        super().__init__()
        self.scatter = scatter
        self.register_buffer("other", values(WIDTH, WIDTH, seed=10) / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for expert, weight in enumerate((self.weight, self.other)):
            rows = ((x[:, 0] > 0).long() == expert).nonzero()[:, 0]
            part = torch.ops.planted.split_k(x[rows], weight)
            y = y.index_add(0, rows, part) if self.scatter == "add" else y.index_put((rows,), part)
        return y


@pytest.mark.parametrize("scatter", ["add", "put"])
def test_experts_that_gather_rows(scatter: str) -> None:
    model, x = Stack(Experts(scatter)).requires_grad_(False), values(40, WIDTH)
    found = explain(model, x[:3], x, align=(0, 0), twins=planted.TWINS)
    expect(found, "planted.split_k.default", "reordering", "not compared", "rows")
    assert found.swaps[-1].differing == 0


def test_the_place_in_the_batch() -> None:
    model, x = Stack(Product("tail", 9)), values(12, WIDTH)
    found = explain(model, x, x.roll(9, 0), align=(0, 9), twins=planted.TWINS)
    expect(found, "planted.tail.default", "reordering", "kernel", "position")


class Columns(Layer):
    """Hands its kernel columns instead of rows when told to."""

    columns = False

    def forward(self, x: Tensor) -> Tensor:
        x = x.mT.contiguous().mT if self.columns else x
        return torch.ops.planted.strided(x, self.weight)


def test_memory_layout() -> None:
    layer = Columns()
    model, x = Stack(layer), values(8, WIDTH)

    def laid(columns: bool) -> Callable[[], Tensor]:
        def call() -> Tensor:
            layer.columns = columns
            return model(x)

        return call

    found = explain(model, laid(False), laid(True), twins=planted.TWINS)
    expect(found, "planted.strided.default", "reordering", "kernel", "layout")


class Masked(Layer):
    """Attention over all rows that a mask leaves."""

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        q = x[None, None]
        return functional.scaled_dot_product_attention(q, q, q, attn_mask=attention_mask)[0, 0]


def test_another_mask() -> None:
    model, x = Stack(Masked()), values(8, WIDTH)
    masks = [torch.ones(8, 8, dtype=torch.bool) for _ in range(2)]
    masks[1][:, 5:] = False
    calls = [lambda mask=mask: model(x, attention_mask=mask) for mask in masks]
    found = explain(model, *calls)
    assert found.place is not None and found.place.module == "layers.2"
    assert (found.kind, found.detail, found.trigger) == ("semantics", "mask", "mask"), found


class Drifting(Layer):
    """Adds a running mean that every call moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x - self.mean)


def test_a_buffer_that_was_changed() -> None:
    layer = Drifting()
    model, x = Stack(layer), values(8, WIDTH)

    def after(value: float) -> Callable[[], Tensor]:
        def call() -> Tensor:
            layer.mean.fill_(value)
            return model(x)

        return call

    found = explain(model, after(0.0), after(0.25))
    expect(found, "aten.sub.Tensor", "semantics", "state", "state")
    assert "buffer layers.2.mean" in found.cause


def test_threads() -> None:
    model, x = Stack(Product("threaded", 9)), values(8, WIDTH)

    def threads(count: int) -> Callable[[], Tensor]:
        def call() -> Tensor:
            before = torch.get_num_threads()
            torch.set_num_threads(count)
            try:
                return model(x)
            finally:
                torch.set_num_threads(before)

        return call

    found = explain(model, threads(1), threads(4), twins=planted.TWINS)
    expect(found, "planted.threaded.default", "reordering", "threads", "threads")
    assert "threads was 1, then 4" in found.cause


@pytest.mark.parametrize("many", [2, 16, 300])
def test_row_wise_log_softmax_is_clean(many: int) -> None:
    class Clean(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return self.product(torch.log_softmax(x, -1))

    found = run(Clean(), 1, many)
    assert (found.verdict, found.kind, found.allowed) == ("equal", None, True)


def test_an_invariant_but_different_convolution_is_clean() -> None:
    class Folded(Layer):
        """A convolution by unfolding: other bits than torch's, and the same for every batch."""

        def forward(self, x: Tensor) -> Tensor:
            patches = functional.pad(x, (1, 1)).unfold(-1, 3, 1)
            return (patches * torch.tensor([0.25, 0.5, 0.25])).sum(-1)

    assert run(Folded(), 1, 33).verdict == "equal"


@pytest.mark.filterwarnings("ignore")
def test_a_scale_inside_a_packed_product() -> None:
    layers = nn.Sequential(nn.Linear(256, 128))
    model = torch.ao.quantization.quantize_dynamic(layers, {nn.Linear}, dtype=torch.qint8)
    x = values(4, 256)
    y = x * torch.tensor([1.0, 1, 1, 50])[:, None]
    found = explain(model, x, y, align=(0, 0))
    assert found.place is not None and found.place.op == "quantized.linear_dynamic.default", found
    assert (found.kind, found.trigger, found.allowed) == ("scale", "neighbours", False), found
