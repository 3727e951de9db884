"""samebits: the same request gives the same bits, whatever else is in the batch."""

from __future__ import annotations

from samebits import guard, ops, plan, settings
from samebits.check import check, explain
from samebits.contract.intervals import certified_argmax
from samebits.guard import service
from samebits.guard.receipts import receipts
from samebits.mode import deterministic, disable, enable, status
from samebits.ops.augmented import (
    augmented_addition,
    augmented_multiplication,
    augmented_subtraction,
    binned_sum,
)
from samebits.plan import contract_of
from samebits.reveal import reveal

__version__ = "0.1.0"

__all__ = [
    "augmented_addition",
    "augmented_multiplication",
    "augmented_subtraction",
    "binned_sum",
    "certified_argmax",
    "check",
    "contract_of",
    "deterministic",
    "disable",
    "enable",
    "explain",
    "guard",
    "ops",
    "plan",
    "receipts",
    "reveal",
    "status",
]

if settings.enabled_at_start():
    enable()
    service.start()
