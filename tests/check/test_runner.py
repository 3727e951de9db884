"""How tests are run: what stock torch cannot take, and a GPU that is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from samebits.check import check, runner
from samebits.check.subject import NotApplicable, Probe, rows_of
from samebits.errors import DeviceError


class Two:
    """A subject with two probes of its layout; stock torch takes the first."""

    name, kind, module = "two", "operations", None

    def __init__(self, device: str = "cpu", fails: bool = False) -> None:
        self.device, self._fails = torch.device(device), fails

    def describe(self) -> dict[str, str]:
        return {}

    def probes(self, test: str) -> Iterator[Probe]:
        if test != "layout":
            raise NotApplicable("only its layout")
        yield Probe("any", self._call, rows_of(self._call, 1))
        yield Probe("ours", self._call, rows_of(self._call, 1), stock=False)

    def _call(self) -> list[tuple[torch.Tensor]]:
        if self._fails:
            raise RuntimeError("misaligned address")
        return [(torch.ones(2),)]


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "subject_of", lambda target, *_, **__: target)


@pytest.mark.usefixtures("subject")
def test_a_probe_that_stock_torch_does_not_take() -> None:
    (test,) = (test for test in check(Two(), costs=False).tests if test.name == "layout")
    assert test.stock is not None and test.switched is not None
    assert [case.label for case in test.stock.cases] == ["any"]
    assert [case.label for case in test.switched.cases] == ["any", "ours"]


@pytest.mark.usefixtures("subject")
def test_an_error_is_a_result_but_a_lost_gpu_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    (test,) = check(Two(fails=True), promises=["layout"], costs=False).tests
    assert test.stock is not None and test.stock.error == "RuntimeError: misaligned address"
    monkeypatch.setattr(runner, "_usable", lambda device: False)
    with pytest.raises(
        DeviceError, match=r"layout, any: a kernel of stock torch has faulted .*mis"
    ):
        check(Two("cuda", fails=True), promises=["layout"], costs=False)
