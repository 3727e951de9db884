"""Lines of cost tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from samebits.check.timing import measure


@dataclass(frozen=True)
class Row:
    """One line of a cost table.

    Attributes:
        area: what is measured, e.g. ``linear``; lines of one area stand together.
        name: the case, e.g. ``fp32 4096x4096 M=1``.
        stock: seconds of stock torch, median; None where there is nothing to compare with.
        ours: seconds with the switch on, median.
        target: the ratio that this line is meant to reach, or None.
    """

    area: str
    name: str
    stock: float | None
    ours: float
    target: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times faster than stock (above 1 is faster)."""
        return None if self.stock is None or not self.ours else self.stock / self.ours


def compare(
    area: str,
    name: str,
    fn: Callable[[], object],
    *,
    ours: Callable[[], object] | None = None,
    target: float | None = None,
    seconds: float = 0.4,
) -> Row:
    """`measure` as a `Row`."""
    stock, with_switch = measure(fn, ours=ours, seconds=seconds)
    return Row(area, name, stock, with_switch, target)
