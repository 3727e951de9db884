"""The callable that stands in for an engine's function: whose turn it is, and what may go wrong."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator

import pytest
import torch

import samebits
from samebits import guard
from samebits.engines.cpu import _cpu, gemm
from samebits.guard.setting import chosen


@pytest.fixture
def rules() -> Iterator[None]:
    """Forgets which calls a test has chosen."""
    yield
    guard.configure(seed=0)
    _cpu.guard_start(0, 0)


@pytest.mark.parametrize("seed", [0, 7, 2**63 + 5])
@pytest.mark.parametrize("rate", [1.0, 0.3, 0.01, 1e-4])
def test_the_extension_chooses_the_calls_of_the_definition(
    seed: int, rate: float, rules: None
) -> None:
    _cpu.guard_start(seed, rate)
    due = [number for number in range(20_000) if _cpu.guard_due(number)]
    assert due == chosen(seed, range(20_000), rate) and due


def sampled(calls: int) -> list[int]:
    """Which of so many products are sampled."""
    x, found = torch.randn(4, 4), []
    for number in range(calls):
        before = guard.counts.samples
        torch.mm(x, x)
        if guard.counts.samples > before:
            found.append(number)
    return found


def test_every_thread_counts_for_itself_and_from_0_again(rules: None) -> None:
    guard.configure(seed=3)
    expected, found = chosen(3, range(200), 0.1), []
    for _ in range(2):
        with samebits.deterministic(guard="sample:0.1"):
            found.append(sampled(200))
            other = threading.Thread(target=lambda: found.append(sampled(200)))
            other.start()
            other.join()
    assert found == [expected] * 4


def test_calls_and_checks_are_counted() -> None:
    x = torch.randn(4, 4)
    before = guard.counts.calls, guard.counts.path_checks, guard.counts.unchecked
    with samebits.deterministic(guard="path"):
        for _ in range(5):
            torch.mm(x, x)
    after = guard.counts.calls, guard.counts.path_checks, guard.counts.unchecked
    assert [b - a for a, b in zip(before, after, strict=True)] == [5, 5, 0]


def test_a_call_that_raises_leaves_the_next_one_watched() -> None:
    x = torch.randn(4, 4)
    with samebits.deterministic(guard="path,sample:1"):
        for _ in range(3):
            with pytest.raises(KeyError):
                gemm.linear(x.double(), x.double(), None)
            before = guard.counts.samples
            torch.mm(x, x)
            assert guard.counts.samples == before + 1


def test_what_a_launch_of_nobody_found_is_blamed_once() -> None:
    """A wrong path that was reported is taken by the call that sees it, and by no other."""
    x = torch.randn(4, 4)
    heard: list[guard.Event] = []
    leave = guard.subscribe(heard.append)
    try:
        with samebits.deterministic(guard="path"):
            _cpu.found_wrong(3)
            for _ in range(4):
                torch.mm(x, x)
    finally:
        leave()
        guard.settle.forget()
    assert [(e.kind, e.verdict) for e in heard] == [("path", "path")]
    assert heard[0].detail.startswith("3 outputs")


def test_what_a_launch_found_before_its_call_raised_is_not_the_next_calls() -> None:
    told: list[int] = []

    def run(good: bool) -> bool:
        if not good:
            _cpu.found_wrong(1)
            raise KeyError
        return good

    call = _cpu.Guarded(run, lambda good: good, lambda *a: told.append(a[3]), print, True, -1)
    with samebits.deterministic(guard="path"):
        with pytest.raises(KeyError):
            call(False)
        assert call(True) and not told


def test_turning_the_guard_on_inside_a_call_does_not_watch_what_is_below(rules: None) -> None:
    """Another thread may do it at any time; what a block believes stays believed, too."""
    x = torch.randn(4, 4)

    def run() -> int:
        _cpu.guard_start(0, 1.0)
        before = guard.counts.samples
        gemm.linear(x, x, None)
        return guard.counts.samples - before

    with samebits.deterministic(guard="sample:1e-9"):
        call = _cpu.Guarded(run, lambda: None, print, lambda *_: None, False, -1)
        assert call() == 0
        with guard.observe.believing():
            _cpu.guard_start(0, 1.0)
            assert guard.observe.believes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("seed", seed) for seed in (-1, 1 << 64, 1.5, "7")],
        *[("most", most) for most in (0, -1, 2.5, "3")],
        *[("alarm", alarm) for alarm in ("page me", 3)],
        *[("dumps", dumps) for dumps in (3, b"x")],
    ],
)
def test_what_is_not_understood_is_refused_and_changes_nothing(name: str, value: object) -> None:
    """When it is set, and not when something has to be told."""
    rules = copy.copy(guard.settle.rules)
    with pytest.raises(samebits.errors.SettingError, match=f"{name}="):
        guard.configure(**({"most": 7, "dumps": "/tmp"} | {name: value}))  # type: ignore[arg-type]
    assert guard.settle.rules == rules


@pytest.mark.parametrize("device", ["mars", "meta", 1.5])
def test_a_step_on_a_device_without_kernels_is_not_run(device: object) -> None:
    with pytest.raises(samebits.errors.SettingError, match="checked on cpu and cuda"):
        guard.step(lambda: pytest.fail("it was run"), device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_step_on_a_gpu_that_is_not_there_is_not_run(device: str) -> None:
    with pytest.raises(samebits.errors.SettingError, match="torch sees no GPU here"):
        guard.step(lambda: pytest.fail("it was run"), device=device)
