"""The words and numbers that open a report, whatever it is rendered to."""

from __future__ import annotations

from dataclasses import dataclass

from samebits.check.result import Noise, Outcome, Report

#: The promises that one process on one machine cannot test.
UNTESTED = "TP-invariant (one process), portable (one machine)"


@dataclass(frozen=True)
class Tile:
    """One number, what it is, and whether it is good news (``good``, ``bad`` or neither)."""

    value: str
    what: str
    mood: str = ""


def headline(report: Report) -> str:
    """The verdict in one line."""
    if report.exit_status == 1:
        return f"{report.target}: a promise is broken with the switch on"
    if report.exit_status == 2:
        return f"{report.target}: the promises could not be tested"
    return f"{report.target}: the same request, the same bits"


def sentence(report: Report) -> str:
    """What was found on both sides."""
    stock, switched = _broken(report, "stock"), _broken(report, "switched")
    ran = sum(test.stock is not None for test in report.tests)
    before = (
        f"Stock PyTorch changed the bits of a request in {len(stock)} of {_tests(ran)} "
        f"({', '.join(stock)})."
        if stock
        else f"Stock PyTorch kept every bit in {'all ' if ran > 1 else ''}{_tests(ran)}."
    )
    errors = [test.switched.error for test in report.tests if test.switched and test.switched.error]
    if switched:
        after = f"With samebits on, bits changed in {len(switched)}: {', '.join(switched)}."
    elif errors:
        after = f"With samebits on it did not run: {errors[0]}"
    else:
        after = "With samebits on, no bit changed in any of them."
    return f"{before} {after}"


def _tests(count: int) -> str:
    return f"{count} test{'' if count == 1 else 's'}"


def tiles(report: Report) -> list[Tile]:
    """The numbers at the top."""
    before, after = _total(report, "stock"), _total(report, "switched")
    found = [
        Tile(f"{before[1]:,}", f"elements compared on each side, {before[2]:,} calls"),
        Tile(f"{before[0]:,}", "of them differ on stock PyTorch", "bad" if before[0] else "good"),
        Tile(f"{after[0]:,}", "of them differ with samebits", "bad" if after[0] else "good"),
    ]
    generation = [speed for speed in report.speed if speed.label.startswith("generate")]
    for speed in (generation or list(report.speed))[:1]:
        mood = "good" if speed.ratio >= 1 else ""
        found.append(Tile(f"{speed.ratio:.2f}×", f"the speed of stock: {speed.label}", mood))
    return found


def noise_sentence(noise: Noise) -> str:
    """What the verdict on a difference rests on."""
    if noise.verdict == "defect" and not noise.reach and not any(noise.predicted[1:]):
        return (
            f"{noise.outside:,} of {noise.elements:,} elements differ, and nothing is added up "
            "here: no order of summation explains it."
        )
    if noise.verdict == "defect":
        return (
            f"{noise.outside:,} of {noise.elements:,} elements examined are outside the interval "
            "that every order of summation keeps: something else than reordering changed them."
        )
    inside = f"All {noise.elements:,} elements examined are inside the certified interval"
    size = f"the largest difference is {noise.times:.2g} times the largest between other orders"
    if noise.verdict == "suspect":
        return f"{inside}, but {size}: lower precision looks like this."
    return f"{inside}; {size}."


def _outcomes(report: Report, side: str) -> list[Outcome]:
    outcomes = [getattr(test, side) for test in report.tests]
    return [outcome for outcome in outcomes if outcome is not None]


def _broken(report: Report, side: str) -> list[str]:
    return [
        test.title
        for test in report.tests
        if (outcome := getattr(test, side)) is not None and outcome.verdict == "differs"
    ]


def _total(report: Report, side: str) -> tuple[int, int, int]:
    """Differing elements, elements, calls."""
    cases = [case for outcome in _outcomes(report, side) for case in outcome.cases]
    return sum(c.differing for c in cases), sum(c.elements for c in cases), len(cases)
