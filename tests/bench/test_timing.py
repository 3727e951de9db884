"""The timing helper must time both sides in turns and know which is which."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from samebits import bench


def test_measure_tells_the_sides_apart_and_takes_turns() -> None:
    log: list[str] = []
    on = False

    @contextmanager
    def switch() -> Iterator[None]:
        nonlocal on
        on = True
        yield
        on = False

    def work() -> None:
        log.append("ours" if on else "stock")
        time.sleep(0.002 if on else 0.0005)

    stock, ours = bench.measure(work, switch=switch, seconds=0.05, rounds=3)
    assert 0.0005 <= stock < ours
    assert ours >= 0.002
    turns = [side for side, before in zip(log, ["", *log], strict=False) if side != before]
    assert turns == ["stock", "ours"] * 4


def test_ratio_is_how_many_times_faster() -> None:
    assert bench.Row("linear", "M=1", stock=3.0, ours=1.5).ratio == 2.0
    assert bench.Row("import", "samebits", stock=None, ours=0.1).ratio is None


def test_an_unknown_area_is_refused() -> None:
    with pytest.raises(ValueError, match="no area 'nonsense'"):
        list(bench.run(("nonsense",)))
