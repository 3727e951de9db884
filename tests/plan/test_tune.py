"""The tuner on a device that is not there: what it measures, strikes out, keeps and resumes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from fake_family import BUCKETS, Absent, Broken, FakeBench, FakeDevice, Own, Vendor
from hypothesis import given
from hypothesis import strategies as st

from samebits.engines.schedule import Schedule, ScheduleKey
from samebits.errors import PlanError
from samebits.plan import document
from samebits.plan.stack import Stack
from samebits.plan.tune import Effort, Step, missing, search, tune
from samebits.plan.tune.search import Seeds, choice_of

pytestmark = pytest.mark.usefixtures("fake")
FAST, SLOW, VENDOR = Own(tile=64), Own(tile=128), Vendor(algorithm=66)


def by_size(schedule: Schedule, m: int) -> float:
    """The small tile wins up to 64 rows, the vendor beyond; the others never."""
    small = {FAST: 10.0, SLOW: 30.0, VENDOR: 20.0}
    large = {FAST: 50.0, SLOW: 40.0, VENDOR: 35.0}
    return (small if m <= 64 else large).get(schedule, 1.0)


def test_the_fastest_of_each_bucket_is_chosen(keys: list[ScheduleKey]) -> None:
    bench = FakeBench(by_size, [SLOW, FAST, VENDOR])
    entry = search(bench, keys[0], Effort(), Seeds(), stock=True)
    for m, choice in zip(BUCKETS, entry.choices, strict=False):
        assert choice.schedule == (FAST if m <= 64 else VENDOR)
        assert choice.us == (10.0 if m <= 64 else 35.0)
        assert choice.runner_up == (VENDOR if m <= 64 else SLOW)
        assert (choice.own, choice.own_us) == ((None, None) if m <= 64 else (SLOW, 40.0))
    assert entry.choices[-1] == entry.choices[-2]
    assert entry.stock_us == (100.0,) * len(BUCKETS)
    assert entry.struck == ()


def test_a_schedule_with_other_bits_is_struck_out_though_it_is_the_fastest(
    keys: list[ScheduleKey],
) -> None:
    wrong, later = Broken(), Broken(from_m=96)
    bench = FakeBench(by_size, [wrong, later, FAST, VENDOR])
    entry = search(bench, keys[0], Effort(), Seeds())
    assert {(s.schedule, s.m) for s in entry.struck} == {(wrong, 1), (later, 96)}
    assert "1 of 96 elements differs" in {s.why for s in entry.struck}
    assert not any(isinstance(s, Broken) and s.from_m <= m for s, m in bench.timed)
    # What is wrong on more rows is not trusted on fewer either.
    named = {s for c in entry.choices for s in (c.schedule, c.runner_up, c.own)}
    assert not any(isinstance(s, Broken) for s in named)


def test_what_does_not_run_is_passed_over(keys: list[ScheduleKey]) -> None:
    entry = search(FakeBench(by_size, [Absent(), FAST]), keys[0], Effort(), Seeds())
    assert {c.schedule for c in entry.choices} == {FAST}
    assert entry.struck == ()


@pytest.mark.parametrize("schedules", [[], [Absent()], [Broken()]])
def test_nothing_to_choose_from_is_an_error(
    keys: list[ScheduleKey], schedules: list[Schedule]
) -> None:
    with pytest.raises(PlanError, match="no schedule runs"):
        search(FakeBench(by_size, schedules), keys[0], Effort(), Seeds())


@given(times=st.lists(st.integers(1, 1000), min_size=1, max_size=30))
def test_the_winner_has_the_smallest_time(times: list[int]) -> None:
    from fake_family import SHAPES

    from samebits.plan.builder import keys_of

    key = keys_of(SHAPES[:1], device="sm_90")[0]
    schedules: list[Schedule] = [Own(tile=i) for i in range(len(times))]
    bench = FakeBench(lambda s, m: float(times[s.tile]), schedules)  # type: ignore[attr-defined]
    effort = Effort(candidates=30)
    entry = search(bench, key, effort, Seeds())
    assert all(choice.us == min(times) for choice in entry.choices)
    for m in BUCKETS:  # one replay of everybody, more of a few
        timed = [s for s, rows in bench.timed if rows == m]
        assert len(timed) <= len(times) + effort.rounds * effort.finalists
        assert set(timed) == set(schedules)


def test_only_the_first_candidates_are_tried(keys: list[ScheduleKey]) -> None:
    bench = FakeBench(lambda s, m: 1.0, [Own(tile=i) for i in range(1, 50)])
    search(bench, keys[0], Effort(candidates=5), Seeds())
    for m in BUCKETS:
        assert len({s for s, rows in bench.timed if rows == m}) == 5


def test_winners_are_tried_first_elsewhere(keys: list[ScheduleKey]) -> None:
    seeds = Seeds()
    search(FakeBench(by_size, [FAST, VENDOR]), keys[0], Effort(), seeds)
    bench = FakeBench(by_size, [SLOW])
    entry = search(bench, keys[1], Effort(), seeds)
    assert entry.choices[0].schedule == FAST
    assert entry.choices[-1].schedule == VENDOR


def test_times_are_medians_of_turns() -> None:
    noisy = iter([9.0, 1.0, 10.0, 10.0, 10.0, 10.0])
    from samebits.plan.tune.search import race

    times, _ = race({FAST: lambda: next(noisy), SLOW: lambda: 9.5}, Effort(rounds=5))
    assert times == {FAST: 10.0, SLOW: 9.5}
    assert choice_of(times).schedule == SLOW


# ---- sessions ----------------------------------------------------------------------------------


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice(lambda key: FakeBench(by_size, [FAST, SLOW, VENDOR]))


def test_a_session_writes_a_plan(
    keys: list[ScheduleKey], stack: Stack, device: FakeDevice, tmp_path: Path
) -> None:
    steps: list[Step] = []
    path = tmp_path / "linear.json"
    found = tune(keys, device, stack, path, stock=keys[:1], tell=steps.append)
    assert document.read(path) == found.plan
    assert {e.key for e in found.plan.entries} == set(keys) == set(device.opened)
    assert [bool(e.stock_us) for e in found.plan.entries].count(True) == 1
    assert (steps[-1].done, steps[-1].total) == (len(keys) * len(BUCKETS),) * 2
    assert [s.done for s in steps] == sorted(s.done for s in steps)
    assert (found.failed, found.left, found.struck) == ({}, [], [])
    assert [p.name for p in tmp_path.iterdir()] == ["linear.json"]


def test_a_session_goes_on_where_an_earlier_one_stopped(
    keys: list[ScheduleKey], stack: Stack, device: FakeDevice, tmp_path: Path
) -> None:
    path = tmp_path / "linear.json"
    stopped = tune(keys, device, stack, path, seconds=-1.0)
    assert (stopped.left, device.opened) == (keys, [])
    tune(keys[:1], device, stack, path)
    whole = tune(keys, device, stack, path)
    assert device.opened == keys
    assert len(whole.plan.entries) == len(keys)
    again = tune(keys, device, stack, path)
    assert device.opened == keys
    assert document.write(again.plan) == document.write(whole.plan)
    tune(keys[:1], device, stack, path, again=True)
    assert device.opened == [*keys, keys[0]]


def test_a_session_never_mixes_stacks(
    keys: list[ScheduleKey], stack: Stack, device: FakeDevice, tmp_path: Path
) -> None:
    path = tmp_path / "linear.json"
    tune(keys[:1], device, stack, path)
    other = msgspec.structs.replace(stack, cublaslt="99.0.0")
    with pytest.raises(PlanError, match="another stack"):
        tune(keys, device, other, path)


def test_a_session_that_cannot_write_ends_before_it_measures(
    keys: list[ScheduleKey], stack: Stack, device: FakeDevice, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match="no such folder"):
        tune(keys, device, stack, tmp_path / "nowhere" / "linear.json")
    assert device.opened == []


def test_one_key_that_fails_does_not_hide_the_others(
    keys: list[ScheduleKey], stack: Stack, tmp_path: Path
) -> None:
    def make(key: ScheduleKey) -> FakeBench:
        return FakeBench(by_size, [Absent()] if key == keys[1] else [FAST])

    found = tune([keys[1], keys[0], keys[2]], FakeDevice(make), stack, tmp_path / "linear.json")
    assert list(found.failed) == [keys[1]]
    assert "PlanError" in found.failed[keys[1]]
    assert len(found.plan.entries) == len(keys) - 1


def test_struck_schedules_are_in_the_file(
    keys: list[ScheduleKey], stack: Stack, tmp_path: Path
) -> None:
    device = FakeDevice(lambda key: FakeBench(by_size, [FAST, Broken()]))
    path = tmp_path / "linear.json"
    found = tune(keys[:1], device, stack, path)
    (entry,) = found.struck
    assert document.read(path).entries[0].struck == entry.struck
    assert entry.struck[0].schedule == Broken()


def test_a_session_goes_on_under_another_driver(
    keys: list[ScheduleKey], stack: Stack, device: FakeDevice, tmp_path: Path
) -> None:
    path = tmp_path / "linear.json"
    assert missing(keys, path, stack) == keys
    tune(keys[:1], device, stack, path)
    newer = msgspec.structs.replace(stack, driver="999.1")
    assert missing(keys, path, newer) == keys[1:]
    assert missing(keys, path, newer, again=True) == keys
    whole = tune(keys, device, newer, path)
    assert device.opened == keys and whole.plan.stack == newer
