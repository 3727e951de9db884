"""Plans of a family that needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_family import SHAPES

from samebits.engines.schedule import ScheduleKey
from samebits.plan import families, planner
from samebits.plan.builder import keys_of
from samebits.plan.stack import Stack


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The family "linear" is the one of `fake_family`; no plan is loaded, no table is committed."""
    monkeypatch.setitem(families.FAMILIES, "linear", ("fake_family",))
    monkeypatch.setattr(planner.tables, "ROOT", planner.tables.ROOT / "nowhere")
    planner.back_to_tables()
    planner.tables.committed.cache_clear()
    yield
    planner.back_to_tables()
    planner.tables.committed.cache_clear()


@pytest.fixture
def keys() -> list[ScheduleKey]:
    return keys_of(SHAPES, device="sm_90")


@pytest.fixture
def stack() -> Stack:
    return Stack(
        device_class="sm_90", device="H200", sms=132, driver="580.1", torch="2.11.0",
        triton="3.6.0", cublaslt="13.1.0",
    )  # fmt: skip
