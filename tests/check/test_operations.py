"""The target ``ops``: whole results compared, every operation of the list."""

from __future__ import annotations

import pytest
import torch

from samebits.check import check
from samebits.check.operations import OperationsSubject, _odd_rows
from samebits.check.subject import LAYOUTS

SIZES = ((24, 64), (8, 96))


def subject(**how: object) -> OperationsSubject:
    options: dict[str, object] = {"sweep": (1, 2, 5, 33), "repeats": 2, "sizes": SIZES}
    return OperationsSubject(torch.device("cpu"), **(options | how))  # type: ignore[arg-type]


def test_operations_hold_on_a_cpu() -> None:
    report = check(subject(), promises=["rows", "position", "neighbours", "layout"], costs=False)
    assert report.holds and report.exit_status == 0
    assert report.kind == "operations"
    labels = [case.label for case in report.tests[0].switched.cases]
    assert "linear 24x64, M = 33" in labels and "attention, decode, M = 1" in labels


def test_attention_holds_in_pieces() -> None:
    report = check(subject(), promises=["chunks"], costs=False)
    assert report.holds


def test_stock_fails_somewhere() -> None:
    report = check(subject(sizes=((512, 512),)), promises=["rows", "chunks"], costs=False)
    cases = [case for test in report.tests if test.stock for case in test.stock.cases]
    assert any(case.differing for case in cases)


def test_what_means_nothing_is_skipped() -> None:
    report = check(subject(), promises=["prefix", "threads"], costs=False)
    assert all(test.skipped == "operations by themselves" for test in report.tests)


def test_rows_that_torchs_attention_does_not_take() -> None:
    """Its kernels for a GPU copy 16 bytes at a time; stock torch asks for nothing."""
    x = torch.zeros(70, 512, dtype=torch.bfloat16)
    odd = {label for label, move in LAYOUTS.items() if _odd_rows(move(x))}
    assert odd == {"one element off alignment", "rows apart"} and not _odd_rows(x)
    probes = list(subject(sizes=((24, 64),)).probes("layout"))
    assert len(probes) == 4 * 8 and all(probe.stock for probe in probes)  # on a CPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_operations_hold_on_a_gpu() -> None:
    wide = OperationsSubject(
        torch.device("cuda"), sweep=(1, 2, 16, 63, 64, 65, 129, 300), repeats=4
    )
    report = check(wide, costs=False)
    assert report.holds, report.to_json()
