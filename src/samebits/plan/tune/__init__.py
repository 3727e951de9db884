"""The tuner: offline, on the device, once. Nothing of it runs when a plan is used."""

from __future__ import annotations

from samebits.plan.tune.search import Bench, Effort, Unsuitable, search
from samebits.plan.tune.session import Outcome, Step, missing, tune

__all__ = ["Bench", "Effort", "Outcome", "Step", "Unsuitable", "missing", "search", "tune"]
