"""What the calls return is compared whatever it is, and what cannot be compared is said."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import planted
import pytest
import torch
from planted import WIDTH, values
from torch import Tensor, nn

from samebits.check import Explanation, explain
from samebits.check.cause.returned import compared, kept
from samebits.errors import SettingError

X = values(4, WIDTH)
Pair = namedtuple("Pair", "hidden name")


@dataclass
class Output:
    """As models return them."""

    logits: Tensor
    text: Any = None


def returning(first: Callable[[Tensor], Any], second: Callable[[Tensor], Any]) -> Explanation:
    """Two calls of one product, of whose result they make different things."""
    model = planted.Exact("", 1).requires_grad_(False)
    return explain(model, lambda: first(model(X)), lambda: second(model(X)))


@pytest.mark.parametrize(
    ("first", "second", "kind", "detail"),
    [
        (lambda y: y, lambda y: y.bfloat16(), "precision", "dtype"),
        (lambda y: {"y": [y]}, lambda y: {"y": [y[:, :5]]}, "semantics", "shape"),
        (lambda y: (y, 1), lambda y: (y, 1.0), "semantics", "result"),
        (lambda y: (y, 0.0), lambda y: (y, -0.0), "semantics", "result"),
        (lambda y: Output(y, ["a", "b"]), lambda y: Output(y, ["a", "c"]), "semantics", "result"),
        (lambda y: Output(y), lambda y: Output(y, y), "semantics", "result"),
        (lambda y: Pair(y, "a"), lambda y: Pair(y, "b"), "semantics", "result"),
        (lambda y: [y, y], lambda y: [y], "semantics", "result"),
        (lambda y: UserDict(n=y), lambda y: UserDict(n=y[:1]), "semantics", "shape"),
        (lambda y: y.numpy(), lambda y: y.double().numpy(), "precision", "dtype"),
        (lambda y: {1, 2}, lambda y: {1, 3}, "semantics", "result"),
    ],
)
def test_results_that_are_not_alike_are_not_equal(
    first: Callable[[Tensor], Any], second: Callable[[Tensor], Any], kind: str, detail: str
) -> None:
    found = returning(first, second)
    assert (found.verdict, found.kind, found.detail) == ("differs", kind, detail), found
    assert not found.allowed and Explanation.from_json(found.to_json()) == found
    assert returning(first, first).verdict == returning(second, second).verdict == "equal"


def test_what_cannot_be_compared_is_said() -> None:
    found = returning(lambda y: {"y": y, "cache": object()}, lambda y: {"y": y, "cache": object()})
    assert found.verdict == "equal"
    assert any("Not compared: [cache] (a object)." in line for line in found.evidence), found
    loop: list[Any] = [1]
    loop.append(loop)
    assert compared(kept(loop, lambda t: None), kept(loop, lambda t: None)).omitted
    with pytest.raises(SettingError, match=r"return cannot be compared: the result \(a object\)"):
        returning(lambda y: object(), lambda y: object())
    nested = explain(lambda x: (torch.nested.nested_tensor([x[0, :3], x[1]]), x), X, X)
    assert any("[0] (a nested tensor of float32)" in line for line in nested.evidence)


def test_numbers_that_tensors_became() -> None:
    """A sum handed to Python: the operation behind it is named."""

    def total(x: Tensor, w: Tensor) -> float:
        return float(torch.ops.planted.atomic(x, w).sum())

    w = values(WIDTH, WIDTH, seed=2)
    found = explain(total, (X, w), (X, w), twins=planted.TWINS)
    assert found.place is not None and found.place.op == "planted.atomic.default", found
    assert (found.kind, found.trigger) == ("reordering", "repeat")


def test_a_type_that_changes_inside_names_the_operation() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).requires_grad_(False)

    def cast() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(X)

    found = explain(model, lambda: model(X), cast)
    assert found.place is not None and found.place.module == "0", found
    assert (found.kind, found.detail, found.trigger) == ("precision", "dtype", "dtype"), found


def test_an_operation_with_a_result_of_another_shape_is_named() -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor, n: int) -> Tensor:
            return x[:, :n].cumsum(1)

    found = explain(Cut(), (X, 8), (X, 7))
    assert found.place is not None and found.place.op == "aten.cumsum.default", found
    assert (found.kind, found.detail, found.trigger) == ("semantics", "shape", "argument")
    assert any("n: 8 in the first run, 7 in the second" in line for line in found.evidence)


def test_text_that_was_asked_for_is_an_input() -> None:
    found = explain(lambda x, text: (x + 1, text), (X, "a"), (X, "b"))
    assert (found.kind, found.detail, found.trigger) == ("inputs", "text", "inputs"), found


def test_inputs_of_two_types_are_inputs() -> None:
    found = explain(nn.ReLU(), X, X.double())
    assert found.kind == "inputs" and "float32 against float64" in found.cause, found


class Statistics(nn.Module):
    """A clean layer that also returns what depends on the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = planted.Exact("", 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        """x [B, D]."""
        y = self.layer(x)
        return {"y": y, "mean": y.mean(), "rows": len(x), "names": [f"r{i}" for i in range(len(x))]}


def test_what_is_of_the_whole_batch_is_not_held_against_a_request() -> None:
    model = Statistics().requires_grad_(False)
    found = explain(model, X[:1], X, align=(0, 0))
    assert found.verdict == "equal", found
    assert any("not counted: The result [mean]" in line for line in found.evidence)
    assert any("not counted: The result [rows] is 1" in line for line in found.evidence)
    assert not any("names" in line for line in found.evidence)  # one a request: its own was taken
    found = explain(model, X[:1], X, align=(0, 2))
    assert found.kind == "inputs"


def test_pieces_of_a_batch_are_compared_with_the_whole() -> None:
    model = planted.Product("split_k", 1).requires_grad_(False)
    x = values(16, WIDTH)
    found = explain(model, x, lambda: torch.cat([model(part) for part in x.split(1)]))
    assert found.verdict == "differs", found


def test_a_model_that_did_not_run_is_said() -> None:
    found = explain(nn.ReLU(), lambda: X, lambda: X)
    assert any("not seen to run" in line for line in found.evidence)


def test_runs_that_raise_are_named() -> None:
    model = nn.Linear(WIDTH, 3).requires_grad_(False)
    with pytest.raises(SettingError, match=r"the second run raised RuntimeError: .*\(.*\.py:\d+\)"):
        explain(model, X, X[:, :3])
    once = iter([X, X])
    with pytest.raises(SettingError, match=r"first run cannot be made again.*StopIteration"):
        explain(model, lambda: model(next(once)), lambda: model(next(once)))


def test_buffers_are_put_back_for_every_repetition() -> None:
    model = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3)).train().requires_grad_(False)
    other = nn.BatchNorm1d(WIDTH)
    other(X), other(X)
    found = explain(model, X, X)
    assert found.verdict == "equal", found
    assert int(model[0].num_batches_tracked) == 2
    assert torch.equal(model[0].running_mean, other.running_mean)


class Replacing(nn.Module):
    """Keeps a running mean by putting another tensor in its place, and uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, D]."""
        y = x - self.mean
        self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
        return y


def test_a_state_that_the_first_run_moved_on() -> None:
    model = Replacing()
    found = explain(model, X, X)
    assert found.place is not None and found.place.op == "aten.sub.Tensor", found
    assert (found.kind, found.detail) == ("semantics", "state")
    assert not any("differs from itself" in line for line in found.evidence)
    assert torch.equal(model.mean, 0.75 * X.mean(0))


@pytest.mark.parametrize("rows", [2, 4])
def test_running_statistics_that_decide_nothing_are_not_blamed(rows: int) -> None:
    model = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3)).train().requires_grad_(False)
    other = X.clone()
    other[1:] *= 2
    found = explain(model, X[:rows], other, align=(0, 0))
    assert found.place is not None and found.place.op == "aten.native_batch_norm.default"
    assert (found.kind, found.trigger) == ("scale", "neighbours"), found


def test_arrays_of_numpy_are_kept_as_they_were() -> None:
    array = np.arange(3.0)
    tree = kept({"a": array, "n": np.float32(1), "s": np.array(["x"])}, lambda t: None)
    array[0] = 7
    again = kept({"a": array, "n": np.float32(1), "s": np.array(["x"])}, lambda t: None)
    found = compared(tree, again)
    assert [(a.label, a.what) for a in found.apart] == [("[a]", "bits")] and found.count == 3
