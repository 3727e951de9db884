"""GPU benchmarks: what is measured, and the line that a measurement becomes.

Every contender of a line runs in one process and in turns (`gpu_timing.race`). A line names the
contender that samebits is held against; the others stand beside it for comparison.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path

from samebits.bench.gpu_timing import Ceilings, Race
from samebits.errors import SettingError

#: Areas in the order of the report; module ``samebits.bench.gpu_<area>``.
AREAS: tuple[str, ...] = (
    "linear", "skinny", "attention", "rows", "moe", "layer", "exact", "portable",
)  # fmt: skip
OURS = "samebits"


@dataclass(frozen=True)
class Line:
    """One piece of work, timed for several contenders.

    Attributes:
        area: one of `AREAS`.
        group: what lines of a picture's curve have in common, e.g. the weight ``4096x4096``.
        case: what is special here, e.g. ``M=64``.
        seconds: of one call, by contender; `OURS` is this project.
        against: the contender to be held against; the fastest of several.
        flops: floating-point operations that the work needs.
        size: bytes that it has to move, each operand once.
        target: the ratio that the line is meant to reach, or None.
        errors: why contenders have no time.
        x: a number to plot over.
    """

    area: str
    group: str
    case: str
    seconds: dict[str, float]
    against: tuple[str, ...]
    flops: float
    size: float
    target: float | None = None
    errors: dict[str, str] = field(default_factory=dict)
    x: float | None = None

    @property
    def ours(self) -> float | None:
        """Seconds of samebits."""
        return self.seconds.get(OURS)

    @property
    def baseline(self) -> float | None:
        """Seconds of the best contender that counts."""
        return min((self.seconds[n] for n in self.against if n in self.seconds), default=None)

    @property
    def ratio(self) -> float | None:
        """How many times faster samebits is than the best contender that counts."""
        if self.ours is None or self.baseline is None:
            return None
        return self.baseline / self.ours

    def floor(self, ceilings: Ceilings) -> float:
        """Seconds that the work takes at least on a GPU with these ceilings."""
        return max(self.flops / ceilings.flops, self.size / ceilings.bandwidth)

    def rate(self, ceilings: Ceilings) -> str:
        """TFLOP/s or GB/s, whichever the work is bound by."""
        if self.ours is None:
            return ""
        if self.flops / ceilings.flops > self.size / ceilings.bandwidth:
            return f"{self.flops / self.ours / 1e12:.0f} TFLOP/s"
        return f"{self.size / self.ours / 1e9:.0f} GB/s"


def line(
    area: str,
    group: str,
    case: str,
    race: Race,
    *,
    against: tuple[str, ...],
    flops: float = 0.0,
    size: float = 0.0,
    target: float | None = None,
    x: float | None = None,
) -> Line:
    """The line of a race."""
    return Line(area, group, case, race.seconds, against, flops, size, target, race.errors, x)


def select(areas: Iterable[str]) -> tuple[str, ...]:
    """The areas by name, in the order of the report.

    Raises:
        SettingError: an area does not exist.
    """
    wanted = set(areas)
    if unknown := wanted - set(AREAS):
        names = ", ".join(map(repr, sorted(unknown)))
        raise SettingError(f"bench gpu has no area {names}: use some of {', '.join(AREAS)}")
    return tuple(area for area in AREAS if area in wanted)


def run(areas: tuple[str, ...] = AREAS, *, quick: bool = False) -> Iterator[Line]:
    """Runs the areas and yields their lines as they come."""
    for area in areas:
        lines: Callable[[bool], Iterable[Line]] = import_module(f"samebits.bench.gpu_{area}").lines
        yield from lines(quick)


def save(path: Path, lines: list[Line], ceilings: Ceilings, about: dict[str, str]) -> None:
    """Writes everything that was measured as JSON."""
    rows = [
        {
            **asdict(each),
            "ratio": each.ratio,
            "share_of_ceiling": None if each.ours is None else each.floor(ceilings) / each.ours,
        }
        for each in lines
    ]
    document = {"about": about, "ceilings": asdict(ceilings), "lines": rows}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
