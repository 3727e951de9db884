"""Two machines, contract by contract: what one records, and what two records say together."""

from __future__ import annotations

from samebits.check.machines.comparison import Comparison, Line, compare
from samebits.check.machines.record import Entry, Record, load, record

__all__ = ["Comparison", "Entry", "Line", "Record", "compare", "load", "record"]
