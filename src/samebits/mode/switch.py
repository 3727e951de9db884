"""Installing and removing the overrides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

import samebits.mode.aten  # noqa: F401  (fills the registry)
from samebits.mode.registry import OVERRIDES

_library: torch.library.Library | None = None


def enable() -> None:
    """Turns the switch on in this process. Idempotent."""
    global _library
    if _library is not None:
        return
    library = torch.library.Library("aten", "IMPL")
    for override in OVERRIDES.values():
        library.impl(override.name, override.fn, override.key, allow_override=True)
    _library = library


def disable() -> None:
    """Turns the switch off and restores stock bits. Idempotent."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None


@contextmanager
def deterministic() -> Iterator[None]:
    """The switch for a block of code."""
    was_on = _library is not None
    enable()
    try:
        yield
    finally:
        if not was_on:
            disable()


def status() -> bool:
    """Whether the switch is on."""
    return _library is not None
