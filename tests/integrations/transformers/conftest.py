"""Skips everything here where transformers is not installed; the switch is on in every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import samebits

pytest.importorskip("transformers", reason="the optional package transformers is not installed")


@pytest.fixture
def switch() -> Iterator[None]:
    """The switch, on."""
    with samebits.deterministic():
        yield
