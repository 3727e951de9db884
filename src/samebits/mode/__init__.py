"""The switch: the only place that patches torch."""

from __future__ import annotations

from samebits.mode.switch import deterministic, disable, enable, status

__all__ = ["deterministic", "disable", "enable", "status"]
