"""Costs against stock torch. One module an area, each with ``rows() -> Iterator[Row]``.

`AREAS` names the modules in the order of the table; they are imported when they are run.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from samebits.bench.timing import Row, compare
from samebits.check.timing import measure

AREAS: tuple[str, ...] = (
    "cpu_linear",
    "cpu_attention",
    "cpu_rows",
    "cpu_exact",
    "cpu_generation",
    "cpu_overhead",
)

__all__ = ["AREAS", "Row", "compare", "measure", "run"]


def run(areas: tuple[str, ...] = AREAS) -> Iterator[Row]:
    """Runs the benchmarks of `areas` and yields their lines as they come.

    Raises:
        ValueError: an area does not exist.
    """
    for area in areas:
        if area not in AREAS:
            raise ValueError(f"bench has no area {area!r}: use one of {', '.join(AREAS)}")
    return (row for area in areas for row in import_module(f"samebits.bench.{area}").rows())
