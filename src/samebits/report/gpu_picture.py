"""The picture of ``samebits bench gpu``: products over the number of rows, all else as dots.

Needs matplotlib (``pip install 'samebits[plots]'``), which nothing else here does.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from samebits.bench.gpu import OURS, Line
from samebits.bench.gpu_timing import Ceilings
from samebits.errors import SamebitsError

#: Areas drawn as curves over M; the others are dots.
_CURVES = ("linear", "skinny")
_INK, _GREY, _LIGHT = "#1b1b1f", "#8a8a93", "#d9d9de"
_BLUE, _OTHERS = "#2456c8", ("#d9822b", "#5a9a68", "#a05fa8", "#8a8a93")
_TITLES = {
    "linear": "Products with model weights",
    "skinny": "Products with few output features",
    "attention": "Attention",
    "rows": "Norms, softmax, activations",
    "moe": "Mixture of experts",
    "layer": "A decoder layer of Qwen3-8B",
    "exact": "Exact sums, against sums in any order",
    "portable": "Portable fp32 products",
}


def needs() -> None:
    """Raises unless matplotlib is installed.

    Raises:
        SamebitsError: with what to install.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise SamebitsError("a picture needs matplotlib: pip install 'samebits[plots]'")


def draw(lines: list[Line], ceilings: Ceilings, about: dict[str, str], path: Path) -> None:
    """Draws all areas that have lines to `path`, in the format of its suffix."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    areas = [a for a in dict.fromkeys(line.area for line in lines) if _of(lines, a)]
    curves = [a for a in areas if a in _CURVES]
    dots = [a for a in areas if a not in _CURVES]
    heights = [3.3] * bool(curves) + [0.75 + 0.22 * len(_of(lines, a)) for a in dots]
    style: dict[Any, Any] = {
        "font.size": 9, "axes.edgecolor": _LIGHT, "axes.labelcolor": _GREY, "text.color": _INK,
        "xtick.color": _GREY, "ytick.color": _INK, "axes.spines.top": False,
        "axes.spines.right": False, "svg.fonttype": "none", "font.family": "sans-serif",
    }  # fmt: skip
    with pyplot.rc_context(style):
        figure = pyplot.figure(figsize=(10, sum(heights) + 0.7), layout="constrained")
        figure.suptitle(
            f"samebits on {about.get('device', 'a GPU').partition(',')[0]}",
            x=0.01, ha="left", fontsize=13, fontweight="bold",
        )  # fmt: skip
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        for column, area in enumerate(curves):
            axes = parts[0].add_subplot(1, len(curves), column + 1)
            _curve(axes, area, _of(lines, area))
        for part, area in zip(parts[bool(curves) :], dots, strict=True):
            _dots(part.add_subplot(), area, _of(lines, area), ceilings)
        figure.savefig(path, dpi=150)
        pyplot.close(figure)


def _of(lines: list[Line], area: str) -> list[Line]:
    return [line for line in lines if line.area == area and line.ours is not None]


def _curve(axes: Any, area: str, lines: list[Line]) -> None:
    """Speed against cuBLAS over M: one thin line a weight, the geometric mean in bold."""
    for group in dict.fromkeys(line.group for line in lines):
        mine = [line for line in lines if line.group == group and line.ratio is not None]
        axes.plot([li.x for li in mine], [li.ratio for li in mine], color=_BLUE, lw=0.7, alpha=0.35)
    base = lines[0].against[0]
    names = [n for n in dict.fromkeys(n for li in lines for n in li.seconds) if n != base]
    ends: list[tuple[float, str, str]] = []
    for index, name in enumerate([n for n in names if n != OURS] + [OURS]):
        ours = name == OURS
        color = _BLUE if ours else _OTHERS[index]
        xs = sorted({line.x for line in lines if line.x is not None})
        means = []
        for x in xs:
            here = [li for li in lines if li.x == x and name in li.seconds and base in li.seconds]
            means.append(geometric_mean([li.seconds[base] / li.seconds[name] for li in here]))
        axes.plot(xs, means, color=color, lw=2.2 if ours else 1.4, ls="-" if ours else (0, (4, 2)))
        ends.append((means[-1], name, color))
    top = max(1.3, *(line.ratio or 0 for line in lines)) * 1.03
    lowest = 0.0
    for value, name, color in sorted(ends):  # labels beside the ends of their curves, not on others
        lowest = max(value, lowest + top / 18)
        axes.annotate(
            name, (xs[-1], lowest), xytext=(4, 0), textcoords="offset points", color=color,
            va="center", fontsize=8, fontweight="bold" if name == OURS else "normal",
        )  # fmt: skip
    axes.axhline(1, color=_INK, lw=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0, top)
    axes.set_xlabel("rows M")
    axes.set_ylabel(f"speed, {base} = 1")
    axes.set_title(_TITLES[area], loc="left", fontsize=10)
    axes.grid(axis="y", color=_LIGHT, lw=0.5)
    axes.margins(x=0.02)


def _dots(axes: Any, area: str, lines: list[Line], ceilings: Ceilings) -> None:
    """The share of the ceiling that every contender reaches, one row a case."""
    names = [n for n in dict.fromkeys(n for line in lines for n in line.seconds) if n != OURS]
    rows = list(range(len(lines)))
    axes.hlines(rows, 0, 1, color=_LIGHT, lw=0.5)
    for index, name in enumerate([*names, OURS]):
        ours = name == OURS
        some = [(i, line) for i, line in enumerate(lines) if name in line.seconds]
        axes.scatter(
            [line.floor(ceilings) / line.seconds[name] for _, line in some],
            [i for i, _ in some],
            s=46 if ours else 30, color=_BLUE if ours else _OTHERS[index],
            zorder=4 if ours else 3, label=name, edgecolor="white", linewidth=0.6,
        )  # fmt: skip
    axes.set_yticks(rows, [line.case for line in lines])
    axes.invert_yaxis()
    shares = [line.floor(ceilings) / t for line in lines for t in line.seconds.values()]
    axes.set_xlim(0, max(1.0, *shares) * 1.02)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("share of the measured ceiling")
    axes.set_title(_TITLES[area], loc="left", fontsize=10)
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=len(names) + 1, frameon=False, fontsize=8,
        handletextpad=0.1, columnspacing=1, borderaxespad=0.2,
    )  # fmt: skip
