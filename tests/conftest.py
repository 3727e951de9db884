"""Fixtures for all tests.

Memory that samebits asks for is poisoned: reading it unwritten shows. Random numbers begin at the
same seed in every test, whichever tests ran before it in its process.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

import interpreter


def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`make`, with its result filled by NaN or the largest integer when samebits calls it."""

    @wraps(make)
    def fresh(*args: Any, **kwargs: Any) -> torch.Tensor:
        x = make(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("samebits") and x.device.type == "cpu":
            if x.dtype.is_floating_point or x.dtype.is_complex:
                x.detach().fill_(float("nan"))
            elif x.dtype is not torch.bool:
                x.fill_(torch.iinfo(x.dtype).max)
        return x

    return fresh


interpreter.install()
# Before samebits is imported: its launchers keep references to these functions.
torch.empty = poisoned(torch.empty)
torch.empty_like = poisoned(torch.empty_like)
torch.Tensor.new_empty = poisoned(torch.Tensor.new_empty)  # type: ignore[method-assign]

from samebits.engines import cpu  # noqa: E402

settings.register_profile(
    "samebits", deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
settings.load_profile("samebits")


@pytest.fixture(autouse=True)
def seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(params=cpu.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once per instruction set of this machine."""
    before = cpu.isa()
    cpu.set_isa(request.param)
    yield request.param
    cpu.set_isa(before)
