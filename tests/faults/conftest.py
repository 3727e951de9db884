"""Every fault is tested from the same start: switch off, two threads, the fastest kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import samebits as sb
from samebits.engines import cpu


@pytest.fixture(autouse=True)
def start() -> Iterator[None]:
    threads, isa = torch.get_num_threads(), cpu.isa()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    sb.disable()
    yield
    sb.disable()
    torch.set_num_threads(threads)
    cpu.set_isa(isa)
