"""``.out`` and in-place forms behave as torch's own do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

import samebits as sb
from samebits.mode import install
from samebits.mode.derive import Schemas


@pytest.fixture(scope="module")
def schemas() -> Schemas:
    return Schemas()


@pytest.mark.parametrize(
    "name, forms",
    [
        ("mm", {"mm.out"}),
        ("addmm", {"addmm.out", "addmm_"}),
        ("sum.dim_IntList", {"sum.IntList_out"}),
        ("pow.Tensor_Scalar", {"pow.Tensor_Scalar_out", "pow_.Scalar"}),
        ("var.correction", {"var.correction_out"}),
        ("sort.stable", {"sort.values_stable"}),
        ("max.dim", {"max.dim_max"}),
        ("native_layer_norm", {"native_layer_norm.out"}),
        ("_index_put_impl_", set()),
    ],
)
def test_forms_are_found_by_schema(schemas: Schemas, name: str, forms: set[str]) -> None:
    assert {form for form, _ in schemas.derived(name)} == forms


def test_every_form_with_a_kernel_has_an_override(schemas: Schemas) -> None:
    covered = install.covered()
    for name, key in install.overrides():
        if key == "CPU":
            for form, _ in schemas.derived(name):
                assert form in covered or form not in _cpu_kernels()


def _cpu_kernels() -> frozenset[str]:
    from samebits.mode import coverage

    return frozenset(n[6:] for n in coverage.registered("CPU"))


Call = Callable[..., object]


@pytest.fixture
def values() -> Iterator[torch.Tensor]:
    torch.manual_seed(0)
    yield torch.randn(5, 7)


def outcome(call: Call, *args: object) -> tuple[object, ...]:
    """What a call does: its result's shape and dtype, warnings, or the error's type and text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call(*args)
        except Exception as error:
            return type(error), str(error).splitlines()[0]
    shapes = [(t.shape, t.dtype) for t in _tensors(result)]
    return shapes, [str(w.message)[:60] for w in caught]


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)]  # type: ignore[attr-defined]


TARGETS = {
    "fits": lambda: torch.empty(5, 7),
    "empty": lambda: torch.empty(0),
    "resized with a warning": lambda: torch.empty(3),
    "strided": lambda: torch.empty(7, 5).t(),
    "integer": lambda: torch.empty(5, 7, dtype=torch.int64),
    "wider": lambda: torch.empty(5, 7, dtype=torch.float64),
    "overlapping": lambda: torch.empty(1).expand(5, 7),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["index_add", "scatter_add"])
def test_out_forms(values: torch.Tensor, name: str, target: str) -> None:
    calls = {
        "index_add": lambda x, out: torch.index_add(x, 0, torch.tensor([1, 1, 3]), x[:3], out=out),
        "scatter_add": lambda x, out: torch.scatter_add(
            x, 0, torch.zeros(2, 7, dtype=torch.int64), x[:2], out=out
        ),
    }
    stock_out, out = TARGETS[target](), TARGETS[target]()
    stock = outcome(calls[name], values, stock_out)
    with sb.deterministic():
        assert outcome(calls[name], values, out) == stock
    if isinstance(stock[0], list):
        assert out.shape == stock_out.shape
        assert torch.allclose(out, stock_out)


def test_out_with_two_results(values: torch.Tensor) -> None:
    for make in (
        lambda: (torch.empty(0), torch.empty(0, dtype=torch.int64)),
        lambda: (torch.empty(5, 2), torch.empty(5, 2, dtype=torch.int64)),
        lambda: (torch.empty(9), torch.empty(4, dtype=torch.int64)),
        lambda: (torch.empty(5, 2), torch.empty(5, 2)),
    ):
        call = lambda x, out: torch.topk(x, 2, out=out)  # noqa: E731
        stock = outcome(call, values, make())
        out = make()
        with sb.deterministic():
            assert outcome(call, values, out) == stock
            if isinstance(stock[0], list):
                assert torch.equal(out[0], values.topk(2).values)


def test_inplace_forms_write_and_return_their_target(values: torch.Tensor) -> None:
    index, source = torch.tensor([1, 1, 3]), torch.randn(3, 7)
    with sb.deterministic():
        expected = values.index_add(0, index, source)
        target = values.clone()
        assert target.index_add_(0, index, source) is target
        assert torch.equal(target, expected)
        version = target._version
        target.index_add_(0, index, source)
        assert target._version > version


def test_inplace_forms_keep_autograd(values: torch.Tensor) -> None:
    index, source = torch.tensor([1, 1, 3]), torch.randn(3, 7, requires_grad=True)
    with sb.deterministic():
        (values.clone().index_add_(0, index, source) * 2).backward(torch.ones_like(values))
    assert source.grad is not None
    assert torch.equal(source.grad, torch.full((3, 7), 2.0))
