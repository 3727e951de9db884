"""Certified intervals: how far a result may lie from the exact one, and from another order's.

`ball` is arithmetic with error bounds, `dot` what dot products can lose, `blocks` where a tensor
core's accumulator lies, `linear`, `rows` and `attention` the contracts' own `interval`, `argmax`
whether a token could change.
docs/intervals.md says what is certified and under which assumptions.
"""

from __future__ import annotations

from samebits.contract.intervals.argmax import Certified, certified_argmax
from samebits.contract.intervals.interval import Interval, Order

__all__ = ["Certified", "Interval", "Order", "certified_argmax"]
