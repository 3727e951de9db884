"""The guard: checks while things run, what it caught, and the record that stays.

`samebits.enable(guard="path,sample:0.01")` turns it on; docs/guard.md says what each mode catches.
"""

from __future__ import annotations

from samebits.guard.control import configure, setting
from samebits.guard.devices import Device, identify
from samebits.guard.events import Counts, Event, Operand, counts, publish, subscribe
from samebits.guard.steps import flagged, step

__all__ = [
    "Counts",
    "Device",
    "Event",
    "Operand",
    "configure",
    "counts",
    "flagged",
    "identify",
    "publish",
    "setting",
    "step",
    "subscribe",
]
