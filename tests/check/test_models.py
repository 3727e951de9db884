"""The main job: the bundled model loses bits on stock torch and keeps every one with the switch."""

from __future__ import annotations

import pytest

from samebits.check import PROMISES, Report, check
from samebits.check.targets import load


@pytest.fixture(scope="module")
def report() -> Report:
    return check(load("tiny"), costs=False)


def test_stock_torch_is_found_not_to_keep_bits(report: Report) -> None:
    broken = {test.name for test in report.tests if test.stock and test.stock.verdict == "differs"}
    assert {"rows", "chunks", "decode"} <= broken
    assert "repeats" not in broken  # the negative control: this stock torch does right


def test_every_promise_holds_with_the_switch(report: Report) -> None:
    wrong = [
        f"{test.name}: {case.label}: {case.error or f'{case.differing} of {case.elements}'}"
        for test in report.tests
        for case in (test.switched.cases if test.switched else ())
        if case.error or case.differing
    ]
    assert wrong == []
    assert report.holds and report.exit_status == 0
    assert {test.promise for test in report.tests if test.switched} == set(PROMISES)
