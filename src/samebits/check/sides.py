"""The two sides of a check: stock torch, and torch with the switch on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from samebits.mode import disable, enable, status


@contextmanager
def stock() -> Iterator[None]:
    """Stock torch for the length of the block, whatever the switch was before."""
    was_on = status()
    if was_on:
        disable()
    try:
        yield
    finally:
        if was_on:
            enable()
