"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from samebits.engines import cpu

settings.register_profile(
    "samebits", deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
settings.load_profile("samebits")


@pytest.fixture(params=cpu.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once per instruction set of this machine."""
    before = cpu.isa()
    cpu.set_isa(request.param)
    yield request.param
    cpu.set_isa(before)
