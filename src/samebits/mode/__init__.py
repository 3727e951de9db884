"""The switch: the only place that patches torch."""

from __future__ import annotations

from samebits.mode.state import Status
from samebits.mode.switch import deterministic, disable, enable, is_on, status, stock

__all__ = ["Status", "deterministic", "disable", "enable", "is_on", "status", "stock"]
