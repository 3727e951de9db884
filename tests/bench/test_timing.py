"""The timing helper must time both sides in turns and know which is which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace

import pytest

from samebits import bench
from samebits.check import timing
from samebits.errors import RankError


def test_measure_tells_the_sides_apart_and_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    on, now = False, 0.0
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now))

    @contextmanager
    def switch() -> Iterator[None]:
        nonlocal on
        on = True
        yield
        on = False

    def work() -> None:
        nonlocal now
        log.append("ours" if on else "stock")
        now += 0.25 if on else 0.125

    stock, ours = bench.measure(work, switch=switch, seconds=6, rounds=3)
    assert (stock, ours) == (0.125, 0.25)
    turns = [side for side, before in zip(log, ["", *log], strict=False) if side != before]
    assert turns == ["stock", "ours"] * 4
    assert len(log) == 1 + 4 * 2 * (1 + 8)  # the first call says how many make a block


def test_ratio_is_how_many_times_faster() -> None:
    assert bench.Row("linear", "M=1", stock=3.0, ours=1.5).ratio == 2.0
    assert bench.Row("import", "samebits", stock=None, ours=0.1).ratio is None


def test_an_unknown_area_is_refused() -> None:
    with pytest.raises(ValueError, match="no area 'nonsense'"):
        bench.run(("nonsense",))


@pytest.mark.parametrize("area", bench.AREAS)
def test_every_area_exists(area: str) -> None:
    assert callable(import_module(f"samebits.bench.{area}").rows)


def test_what_an_idle_switch_costs_is_measured_in_fresh_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from samebits.bench import cpu_overhead

    monkeypatch.setattr(cpu_overhead, "PROCESSES", 1)
    monkeypatch.setattr(cpu_overhead, "_CALLS", {"relu": "torch.relu(x)"})
    rows = list(cpu_overhead.rows())
    assert [row.area for row in rows] == ["import", "one call", "one call"]
    assert rows[0].stock is None and rows[0].ours > 0
    assert all(row.ratio for row in rows[1:])


def test_a_rank_that_ends_ends_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    from samebits.bench import cpu_exact

    monkeypatch.setattr(cpu_exact, "_rank", len)  # raises: three arguments
    with pytest.raises(RankError, match="a rank ended or hangs"):
        next(cpu_exact._sums())
