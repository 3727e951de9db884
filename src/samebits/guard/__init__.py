"""The guard: checks while things run, what it caught, and the record that stays."""

from __future__ import annotations

from samebits.guard.devices import Device, identify
from samebits.guard.events import Counts, Event, Operand, counts, publish, subscribe

__all__ = ["Counts", "Device", "Event", "Operand", "counts", "identify", "publish", "subscribe"]
