"""`explain` on models as they are: depth, decoding, alignment, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import planted
import pytest
import torch
from planted import WIDTH, Product, Stack, values
from torch import Tensor, nn

import samebits as sb
from samebits.check import Explanation, Request, check, explain
from samebits.check.cause.marks import aligned
from samebits.check.tokens import Sizes
from samebits.errors import SettingError, ShapeError
from samebits.mode import stock
from samebits.models import tiny


class Block(nn.Module):
    """Attention and a gated product, as in a decoder."""

    def __init__(self, faulty: bool, seed: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        kernel = Product("split_k", seed) if faulty else planted.Exact("", seed)
        self.up, self.down = planted.Exact("", seed + 1), kernel
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D]."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Counting(nn.Module):
    """24 blocks, of which the 18th has a faulty kernel; counts how often it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(i == 17, 3 * i) for i in range(24))
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D]."""
        self.forwards += 1
        for block in self.blocks:
            x = block(x)
        return x


def test_the_operation_in_24_layers_is_named_in_under_20_forward_passes() -> None:
    model = Counting().requires_grad_(False)
    x = values(4, 5, WIDTH)
    found = explain(model, x[:1], x, align=(0, 0), twins=planted.TWINS)
    assert found.place is not None
    assert (found.place.module, found.place.op) == ("blocks.17.down", "planted.split_k.default")
    assert found.place.shapes == (("(5, 128)", "(128, 128)"), ("(20, 128)", "(128, 128)"))
    assert (found.kind, found.trigger) == ("reordering", "rows")
    assert any("1-7: first run's bits; 8-20: second run's bits" in line for line in found.evidence)
    assert found.passes == model.forwards < 20
    first_that_differs = next(m.name for m in found.modules if m.differing)
    assert first_that_differs == "blocks.17.down"
    # To exchange this one call alone is enough: no module differs any more.
    assert [(s.replaced, s.differing, s.first) for s in found.swaps] == [(2, 0, None)]


def test_prefill_and_decode_of_the_bundled_model() -> None:
    model = tiny.load()
    ids = torch.tensor(list(b"Shall I compare thee"))[None]

    def decode() -> Tensor:
        cache = tiny.KVCache(model.config, 1, 32, torch.float32, torch.device("cpu"))
        return torch.cat([model(piece, cache) for piece in ids.split([16, 1, 1, 2], 1)], 1)

    found = explain(model, (ids,), decode, align=(0, 0))
    if found.verdict == "differs":  # which operation it is depends on the machine's libraries
        assert found.kind == "reordering" and found.place is not None and found.place.op
        assert found.swaps[-1].differing == 0
    with sb.deterministic():
        under = explain(model, (ids,), decode, align=(0, 0))
    assert under.verdict == "equal" and not any(m.differing for m in under.modules)
    assert len(under.modules) > 20


class Attention(nn.Module):
    """Causal attention over the tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        self.past: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """x [1, T, 9 * 64]."""
        x = x.unflatten(-1, (9, 64)).transpose(1, 2)
        self.past.append(x)
        keys = torch.cat(self.past, 2)
        y = torch.nn.functional.scaled_dot_product_attention(
            x, keys, keys, is_causal=x.shape[2] > 1
        )
        return y.transpose(1, 2).flatten(2)


def test_attention_of_a_text_in_pieces() -> None:
    model, x = Attention(), values(1, 32, 9 * 64).bfloat16()

    def pieces(*sizes: int) -> Callable[[], Tensor]:
        def call() -> Tensor:
            model.past.clear()
            return torch.cat([model(part) for part in x.split(sizes, 1)], 1)

        return call

    found = explain(model, pieces(32), pieces(30, 1, 1), align=(0, 0))
    if found.verdict == "differs":
        assert found.place is not None and "attention" in (found.place.op or "")
        assert (found.kind, found.trigger) == ("reordering", "tokens"), found
        assert found.swaps[0].differing == 0


def test_a_request_in_a_padded_batch() -> None:
    model = Stack(Product("split_k", 9)).requires_grad_(False)
    x = values(3, 11, WIDTH)
    padded = x.clone()
    padded[1] = torch.cat([torch.zeros(4, WIDTH), x[0, :7]])
    found = explain(
        model, x[:1, :7], padded, align=(Request(0), Request(1, (4, 11))), twins=planted.TWINS
    )
    assert found.place is not None and found.place.op == "planted.split_k.default"
    assert (found.kind, found.trigger) == ("reordering", "rows")


def test_functions_are_explained_too() -> None:
    weight = values(WIDTH, WIDTH)

    def fn(x: Tensor) -> Tensor:
        return torch.relu(torch.ops.planted.split_k(x, weight))

    x = values(9, WIDTH)
    found = explain(fn, x[:2], x, align=(1, 1), twins=planted.TWINS)
    assert found.target == "fn" and found.place is not None
    assert (found.place.op, found.trigger) == ("planted.split_k.default", "rows")
    assert found.swaps[0].differing == 0


def test_a_plain_pair_of_calls_without_a_model() -> None:
    x = values(8, WIDTH)
    weight = values(WIDTH, WIDTH)
    product: Callable[..., Any] = torch.ops.planted.atomic
    found = explain(
        None, lambda: product(x, weight), lambda: product(x, weight), name="pair",
        twins=planted.TWINS,
    )  # fmt: skip
    assert (found.kind, found.detail, found.target) == ("reordering", "atomic", "pair")


def test_the_random_state_goes_on_as_after_two_runs() -> None:
    model = Stack(nn.Dropout(0.1))
    x = values(4, WIDTH)
    torch.manual_seed(5)
    model(x), model(x)
    expected = torch.rand(3)
    torch.manual_seed(5)
    explain(model, x, x)
    assert torch.equal(torch.rand(3), expected)


def test_hooks_are_gone_afterwards() -> None:
    model = Stack(Product("split_k", 9))
    x = values(9, WIDTH)
    explain(model, x[:1], x, align=(0, 0))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_what_cannot_be_explained_is_refused() -> None:
    for nothing in (3, None):
        with pytest.raises(SettingError, match="cannot be explained"):
            explain(nothing, torch.ones(2), torch.ones(2))
    model = Stack(Product("split_k", 9))
    x = values(2, 7, WIDTH)
    with pytest.raises(ShapeError, match="only you know which tokens belong together"):
        explain(model, x[:, :5], x)
    for align in ((0, 2), (-1, 0)):
        with pytest.raises(ShapeError, match="names row"):
            explain(model, x, x, align=align)
    with pytest.raises(SettingError, match="nothing in the two runs could be compared"):
        explain(model, lambda: None, lambda: None)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"align": 5}, "align = 5: give the request's row"),
        ({"align": (0,)}, "give the request's row"),
        ({"align": ("a", 1)}, "give the request's row"),
        ({"align": (Request(0, (0, 1, 2)), Request(0))}, "give the request's row"),  # type: ignore[arg-type]
        ({"align": (Request(0, (0, 9)), Request(0, (0, 9)))}, "whose input has 7 tokens"),
        ({"align": (Request(0, (4, 1)), Request(0, (0, 2)))}, "tokens 4 to 1"),
        ({"first": None}, "a run is NoneType"),
        ({"first": torch.empty(2, 7, WIDTH, device="meta")}, "meta device"),
        ({"twins": 5}, "twins is int"),
    ],
)
def test_arguments_of_another_form_are_refused(how: dict[str, Any], reason: str) -> None:
    x = values(2, 7, WIDTH)
    with pytest.raises((SettingError, ShapeError), match=reason):
        explain(Stack(Product("split_k", 9)), **{"first": x, "second": x, **how})


def test_runs_that_write_to_what_is_not_put_back_are_refused() -> None:
    class Writes(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.mul_(0.5)
            return super().forward(x)

    with pytest.raises(SettingError, match="write to parameter weight, so that no repetition"):
        explain(Writes(8, 8), torch.ones(2, 8), torch.ones(2, 8))
    with pytest.raises(SettingError, match="write to an argument of the first run"):
        explain(lambda x, more: x.add_(more), (torch.ones(2), 0), (torch.ones(2), torch.ones(2)))


def test_sparse_tensors_on_the_way() -> None:
    class Sparse(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            """x [B, D]."""
            scaled = x * (1 if len(x) > 1 else 2)
            return torch.sparse.mm(scaled.to_sparse(), torch.eye(WIDTH))

    x = values(4, WIDTH)
    found = explain(Sparse(), x[:1], x, align=(0, 0))
    assert found.place is not None and found.place.op == "aten.mul.Tensor"


def test_check_explains_its_own_cases() -> None:
    report = check(
        Stack(Product("split_k", 9)), values(3, WIDTH), promises=["rows"], costs=False,
        explain=True, switch=stock,
    )  # fmt: skip
    outcome = report.tests[0].stock
    assert outcome is not None and outcome.explanation is not None
    found = outcome.explanation
    assert found.place is not None and found.place.op == "planted.split_k.default"
    assert found.trigger == "rows" and "M = 8" in found.target
    assert type(report).from_json(report.to_json()) == report


def test_the_bundled_model_is_explained_by_check() -> None:
    sizes = Sizes((1, 2, 5), 13, 11, 1)
    report = check(tiny.load(), costs=False, explain=True, promises=["rows"], sizes=sizes)
    stock_side, switched = report.tests[0].stock, report.tests[0].switched
    assert stock_side is not None and switched is not None and switched.explanation is None
    found = stock_side.explanation
    if found is not None:
        assert isinstance(found, Explanation) and found.kind == "reordering"
        assert found.swaps and found.swaps[-1].differing == 0


def test_compiled_against_eager() -> None:
    """Inductor's fused sum has another order; step by step both runs are eager and agree."""

    class Sums(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x * 1.7, -1).sum(-1, keepdim=True) * x.sum(-1, keepdim=True)

    model = Sums()
    x = values(16, 4099)
    fused = torch.compile(model)
    if torch.equal(fused(x), model(x)):
        pytest.skip("this compiler keeps the order")
    found = explain(model, lambda: model(x), lambda: fused(x))
    assert (found.kind, found.detail, found.trigger) == ("reordering", "compiled", "compiled")
    assert any("Run eagerly" in line for line in found.evidence)


def test_inference_mode_and_views() -> None:
    """Under inference mode composites are single steps, and tensors cannot be written to."""
    model = Stack(Product("split_k", 9)).requires_grad_(False)
    x = values(9, WIDTH)

    def inferred(rows: int) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with torch.inference_mode():
                return model(x[:rows])

        return call

    found = explain(model, inferred(1), inferred(9), align=(0, 0), twins=planted.TWINS)
    assert found.place is not None and found.place.op == "planted.split_k.default"
    assert (found.kind, found.trigger) == ("reordering", "rows")


def test_linear_layers_of_stock_torch_under_inference_mode() -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3))).requires_grad_(False)
    x = values(16, 512)

    def inferred(rows: int) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with torch.inference_mode():
                return model(x[:rows])

        return call

    found = explain(model, inferred(1), inferred(16), align=(0, 0))
    if found.verdict == "differs":
        assert found.kind == "reordering" and found.place is not None
        assert found.place.module == "0" and found.swaps[-1].differing == 0


class Recurrent(nn.Module):
    """Tokens [B, T] through a layer that computes time first; in wider batches one sum of 2 parts.

    A request alone is multiplied and added in one operation, a batch in two.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(values(WIDTH, WIDTH, seed=3) / WIDTH**0.5)
        self.bias = nn.Parameter(values(WIDTH, seed=4))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D]."""
        b, t, d = x.shape
        flat = x.transpose(0, 1).reshape(t * b, d)
        if b == 1:
            inputs = torch.addmm(self.bias, flat, self.weight)
        else:
            inputs = flat @ self.weight + self.bias
        h, states = torch.zeros(b, d), []
        for now in inputs.relu().unflatten(0, (t, b)).unbind(0):
            h = torch.tanh(now + torch.addmm(self.bias, h, self.weight))
            states.append(torch.ops.planted.split_k(h, self.weight))
        return torch.stack(states, 1)


@pytest.mark.parametrize(("few", "place"), [(1, 0), (2, 1)])
def test_layers_that_compute_time_first(few: int, place: int) -> None:
    model = Recurrent().requires_grad_(False)
    x = values(9, 5, WIDTH)
    found = explain(model, x[:few], x, align=(place, place), twins=planted.TWINS)
    assert found.kind == "reordering" and found.place is not None, found
    assert found.passes < 24, found.passes


def test_rows_that_are_sorted_on_the_way_are_not_blamed() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(values(WIDTH, WIDTH, seed=9) / WIDTH**0.5)

        def forward(self, x: Tensor) -> Tensor:
            """x [B, D]."""
            order = x[:, 0].argsort()
            y = torch.ops.planted.split_k(x[order], self.weight)
            return torch.relu(y[order.argsort()])

    x = values(9, WIDTH)
    found = explain(Sorted(), x[:2], x, align=(1, 1), twins=planted.TWINS)
    assert found.kind == "reordering", found
    assert any("Passed over" in line for line in found.evidence)


@pytest.mark.parametrize("recurrent", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize(("few", "many", "place"), [(1, 8, 0), (2, 8, 1), (1, 12, 0)])
def test_recurrent_layers_of_torch(
    recurrent: type[nn.RNNBase], few: int, many: int, place: int
) -> None:
    torch.manual_seed(0)
    model = recurrent(64, 96, batch_first=True).requires_grad_(False)
    x = values(many, 12, 64)
    found = explain(model, x[:few], x, align=(place, place))
    if found.verdict == "differs":  # which kernels torch takes depends on the machine
        assert found.kind == "reordering", found


def test_different_inputs_are_called_that() -> None:
    model, x = Stack(Product("split_k", 9)), values(4, WIDTH)
    found = explain(model, x[:1], x.roll(1, 0), align=(0, 0))
    assert (found.kind, found.trigger, found.allowed) == ("inputs", "inputs", False), found
    assert "x differs" in found.cause and "same request" in found.should
    tokens = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))
    ids = torch.arange(6)[None]
    other = ids.clone()
    other[0, 4] = 0
    found = explain(tokens, ids, other)
    assert found.kind == "inputs" and "input differs for the request" in found.cause
    found = explain(tokens, ids, other.repeat(2, 1), align=(0, 1))
    assert "in 1 of 6 tokens, first in token 4" in found.cause


def test_other_arguments_of_the_model_are_inputs_too() -> None:
    class Shifted(nn.Module):
        def forward(self, x: Tensor, shift: Tensor) -> Tensor:
            """x [B, D], shift [D]."""
            return torch.relu(x + shift)

    x, shift = values(4, WIDTH), values(WIDTH, seed=1)
    found = explain(Shifted(), (x, shift), (x, shift * 2))
    assert (found.kind, found.detail, found.trigger) == ("inputs", "shift", "inputs"), found
    assert found.place is not None and found.place.op == "aten.add.Tensor"


def test_tokens_that_follow_from_a_difference_are_not_inputs() -> None:
    """What a model is asked later is what it answered before."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(50, WIDTH), planted.Exact("", 3)
            self.scale = 1.0

        def forward(self, ids: Tensor) -> Tensor:
            """ids [1, T]."""
            return self.head(self.embed(ids) * self.scale)

    torch.manual_seed(0)
    model = Scaled().requires_grad_(False)

    def generated(scale: float, seed: int) -> Callable[[], Tensor]:
        def call() -> Tensor:
            model.scale = scale
            ids, results = torch.tensor([[1]]), []
            for _ in range(4):
                results.append(model(ids))
                ids = (ids + seed) % 50
            return torch.cat(results, 1)

        return call

    found = explain(model, generated(1.0, 1), generated(1.5, 2), align=(0, 0))
    assert found.kind == "semantics" and found.place is not None
    assert found.place.op == "aten.mul.Tensor", found


def test_without_a_bound_nothing_is_said_about_orders() -> None:
    """How far errors of a solution of equations may go depends on their condition."""

    class Solves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            """x [B, D]."""
            n = 8 + int(len(x) > 4)
            hilbert = 1 / (torch.arange(n)[:, None] + torch.arange(n) + 1.0)
            return torch.linalg.solve(hilbert, x[:, :n].T).T[:, :8]

    x = values(9, WIDTH)
    found = explain(Solves(), x[:1], x, align=(0, 0))
    assert not any("no order of additions" in text for text in (found.cause, *found.evidence))
    assert found.amount is None or found.amount.of_bound is None


class Recast(nn.Module):
    """A layer that is computed by hand in another precision for large batches."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = nn.Linear(WIDTH, WIDTH), dtype

    def forward(self, x: Tensor) -> Tensor:
        """x [B, D]."""
        if len(x) < 5:
            return self.layer(x)
        w, b = self.layer.weight.to(self.dtype), self.layer.bias.to(self.dtype)
        return nn.functional.linear(x.to(self.dtype), w, b).float()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_product_of_casts_is_another_precision(dtype: torch.dtype) -> None:
    x = values(8, WIDTH)
    found = explain(Recast(dtype), x[:1], x, align=(0, 0))
    assert (found.kind, found.detail) == ("precision", "dtype")


def test_rows_that_change_places_are_no_scale() -> None:
    x = values(8, WIDTH)
    found = explain(lambda x: x.roll(1, 0) * 2, x[:1], x, align=(0, 0))
    assert (found.kind, found.trigger) == ("semantics", "neighbours")
    assert "aten.roll moves data between rows" in found.cause


def test_operations_are_aligned_where_one_run_has_more() -> None:
    def keys(names: str) -> list[tuple[str, str, int]]:
        return [("m", name, names[:i].count(name)) for i, name in enumerate(names)]

    found = aligned(keys("acdcbe"), keys("xcdcbye"))
    assert found == {
        ("m", "c", 0): ("m", "c", 0), ("m", "d", 0): ("m", "d", 0), ("m", "c", 1): ("m", "c", 1),
        ("m", "b", 0): ("m", "b", 0), ("m", "e", 0): ("m", "e", 0),
    }  # fmt: skip
    # One multiplication more at the beginning moves the numbers of all that follow.
    assert aligned(keys("dcac"), keys("cdcac")) == {
        ("m", "d", 0): ("m", "d", 0), ("m", "c", 0): ("m", "c", 1),
        ("m", "a", 0): ("m", "a", 0), ("m", "c", 1): ("m", "c", 2),
    }  # fmt: skip
