"""The checker on functions and modules: it finds planted faults, names them, and invents none."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from samebits.check import Report, check
from samebits.errors import SettingError, ShapeError


def verdicts(report: Report) -> set[str]:
    """The tests that stock torch fails."""
    return {test.name for test in report.tests if test.stock and test.stock.verdict == "differs"}


def run(fn: Callable[..., object], *inputs: Tensor, **how: object) -> Report:
    return check(fn, inputs, costs=False, switch=nullcontext, **how)  # type: ignore[arg-type]


X = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))


def test_an_exact_function_keeps_all_its_bits() -> None:
    report = run(torch.relu, X)
    assert report.holds and report.exit_status == 0
    assert verdicts(report) == set()
    assert {test.name for test in report.tests if test.skipped} == {"chunks", "decode", "prefix"}
    assert report.verdict("prefill/decode consistent", "stock") is None


def depends_on_count(x: Tensor) -> Tensor:
    return x * (1.0 if len(x) < 5 else 1.0 + 2.0**-20)


def depends_on_position(x: Tensor) -> Tensor:
    out = x.clone()
    out[9:10] += 2.0**-20
    return out


def depends_on_contents(x: Tensor) -> Tensor:
    return x + 0.0 * x.max()


def depends_on_layout(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else x * (1 + 2.0**-20)


def depends_on_threads(x: Tensor) -> Tensor:
    return x / 3 if torch.get_num_threads() == 3 else x * (1 / 3)


@pytest.mark.parametrize(
    ("fn", "found"),
    [
        (depends_on_count, {"rows", "padding"}),
        (depends_on_position, {"rows", "position"}),
        (depends_on_contents, {"neighbours"}),
        (depends_on_layout, {"layout"}),
        (depends_on_threads, {"threads"}),
    ],
)
def test_each_kind_of_fault_is_found_by_its_test(
    fn: Callable[[Tensor], Tensor], found: set[str]
) -> None:
    report = run(fn, X)
    assert verdicts(report) == found
    assert report.exit_status == 1 and not report.holds


def test_a_function_that_does_not_repeat_is_found() -> None:
    calls = itertools.count()
    report = run(lambda x: x + next(calls) * 2.0**-20, X, promises=["run-to-run"])
    assert verdicts(report) == {"repeats"}
    assert [test.name for test in report.tests] == ["repeats"]


def test_the_sweep_says_which_rows_of_which_batches_differ() -> None:
    report = run(depends_on_position, X, promises=["rows"], sweep=(1, 9, 10, 12))
    outcome = report.tests[0].stock
    assert outcome is not None
    assert [case.x for case in outcome.cases] == [1, 9, 10, 12]
    rows = [[i for i, count in enumerate(case.rows) if count] for case in outcome.cases]
    assert rows == [[], [], [9], [9]]
    assert outcome.cases[3].elements == 12 * 40


class Planted(nn.Module):
    """Its third layer's product depends on the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ReLU()
        self.second = nn.Hardtanh()
        self.third = self.Third()
        self.last = nn.ReLU()

    class Third(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            return y.mul(1.0 if len(x) == 1 else 1.0 + 2.0**-20)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.third(self.second(self.first(x))))
        return out


def test_the_first_module_and_operation_that_differ_are_named() -> None:
    report = run(Planted(), X.abs(), promises=["rows"])
    outcome = report.tests[0].stock
    assert outcome is not None and outcome.divergence is not None
    found = outcome.divergence
    assert (found.module, found.op, found.op_module) == ("third", "aten.mul.Tensor", "third")
    assert (found.reference_shapes, found.shapes) == (("(1, 40)",), ("(2, 40)",))
    assert found.faithful
    layers = {layer.name: layer.differing > 0 for layer in found.layers}
    assert layers == {
        "first": False, "second": False, "third": True, "last": True, "(whole)": True
    }  # fmt: skip


def test_the_switch_is_checked_by_itself() -> None:
    on = False

    @contextmanager
    def switch() -> Iterator[None]:
        nonlocal on
        on = True
        yield
        on = False

    def fn(x: Tensor) -> Tensor:
        return x if on else depends_on_count(x)

    report = check(fn, X, costs=False, switch=switch)
    assert report.holds and verdicts(report) == {"rows", "padding"}
    report = check(lambda x: depends_on_count(x) if on else x, X, costs=False, switch=switch)
    assert report.exit_status == 1 and verdicts(report) == set()


def test_an_error_under_the_switch_is_not_a_broken_promise() -> None:
    on = False

    @contextmanager
    def switch() -> Iterator[None]:
        nonlocal on
        on = True
        yield
        on = False

    def fn(x: Tensor) -> Tensor:
        if on:
            raise RuntimeError("refused")
        return x

    report = check(fn, X, switch=switch)
    assert report.exit_status == 2 and not report.holds
    assert report.tests[0].switched is not None
    assert report.tests[0].switched.error == "RuntimeError: refused"


def test_reports_survive_json() -> None:
    report = run(Planted(), X.abs())
    assert Report.from_json(report.to_json()) == report
    with pytest.raises(ValueError, match="not a samebits report"):
        Report.from_json('{"format": 0}')


def test_other_json_files_are_no_reports() -> None:
    whole = json.loads(run(Planted(), X.abs()).to_json())
    for change in ({"device_class": "cpu"}, {"outcome": []}):
        with pytest.raises(ValueError, match="something else than a Report"):
            Report.from_json(json.dumps(whole | change))
    del whole["target"]
    with pytest.raises(ValueError, match=r"Report: .*target"):
        Report.from_json(json.dumps(whole))


def test_weights_are_not_rows_unless_told() -> None:
    report = run(lambda x, w: x * w, X, torch.randn(40))
    assert report.holds
    report = run(lambda x, w: x * w, X, torch.randn(3, 40), batched=(True, True))
    assert report.holds


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(ShapeError, match="does not work row by row: 1 rows in, \\(\\) out"):
        run(torch.sum, X)
    with pytest.raises(ShapeError, match="no input has a batch axis"):
        run(torch.relu, torch.tensor(1.0))
    with pytest.raises(ShapeError, match="different numbers of rows"):
        run(torch.add, X, torch.randn(4, 40), batched=(True, True))
    with pytest.raises(SettingError, match="needs inputs"):
        check(torch.relu)
    with pytest.raises(SettingError, match="cannot be checked"):
        check(3)
    with pytest.raises(SettingError, match="no promise or test is called 'rwos'"):
        run(torch.relu, X, promises=["rwos"])


def test_stock_linear_in_float32_is_found_out() -> None:
    """A1, A2 of the known faults: a row's bits change with the batch around it."""
    weight = torch.randn(512, 512, generator=torch.Generator().manual_seed(2))
    x = torch.randn(2, 512, generator=torch.Generator().manual_seed(3))
    report = run(nn.functional.linear, x, weight, promises=["rows", "neighbours"])
    assert verdicts(report) == {"rows"}
    outcome = report.tests[0].stock
    assert outcome is not None and outcome.divergence is not None
    assert outcome.divergence.op == "aten.mm.default"
