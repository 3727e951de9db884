"""Which contract an operation has, and which schedule runs it. Nothing here can see a batch's rows.

A plan names, for a device class and a set of shapes, the contract of every operation and the
schedule of every bucket of rows. The tables that come with a release are in force until `load`
puts another plan in their place; they, and every plan, change speed alone.
"""

from __future__ import annotations

from pathlib import Path

from samebits.plan import planner
from samebits.plan.builder import build
from samebits.plan.contracts import contract_for, contract_of
from samebits.plan.document import Plan, read
from samebits.plan.loading import load

__all__ = [
    "Plan", "build", "contract_for", "contract_of", "current", "load", "read", "reset", "save",
]  # fmt: skip


def current(device: str | None = None) -> Plan:
    """The plan in force.

    Args:
        device: device class; that of this machine's GPU if None, or "cpu".
    """
    return planner.in_force(device or planner.this_device_class())


def save(path: str | Path, device: str | None = None) -> None:
    """Writes the plan in force on a device class; see `current`."""
    current(device).save(path)


def reset() -> None:
    """Puts the tables of this release in force again, on every device class."""
    planner.back_to_tables()


def __getattr__(name: str) -> str:
    if name == "id":
        return current().id
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
