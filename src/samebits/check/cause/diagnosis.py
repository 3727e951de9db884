"""From experiments to a cause: detectors are tried in order of how surely their kind is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from samebits.check.cause import detectors as detect
from samebits.check.cause import narrower
from samebits.check.cause.answers import Diagnosis, other_operations, other_types
from samebits.check.cause.case import Case, small
from samebits.check.cause.marks import Step
from samebits.check.cause.settings import SWITCH, Settings, kind_of
from samebits.check.compare import Bits
from samebits.check.tape import Key

#: In this order: what is seen at the operands before what is inferred from results.
DETECTORS: tuple[Callable[[Case], Diagnosis | None], ...] = (
    detect.random_numbers,
    detect.passed_over,
    detect.ties,
    detect.uninitialised,
    narrower.rounded,
    detect.batch_scale,
    detect.other_order,
    detect.state,
    detect.setting,
    narrower.dtype,
    detect.run_to_run,
    detect.not_a_number,
    narrower.narrow,
    detect.argument,
    detect.other_kernel,
    detect.handed_on,
    detect.neighbours,
    detect.history,
    detect.reordering,
)


def diagnose(case: Case) -> Diagnosis:
    """The cause of a difference."""
    found = next((d for d in (find(case) for find in DETECTORS) if d is not None), None)
    return replace(found or detect.defect(case), factors=case.factors, of_bound=case.of_bound)


def without_operation(
    values: tuple[Bits, Bits],
    others: tuple[list[Key], list[Key]],
    given: list[tuple[str, str, str]],
    settings: tuple[Settings, Settings] | None,
    steady: bool,
    recast: Step | None = None,
) -> Diagnosis:
    """The cause where no operation that both runs have differs.

    Args:
        values: results of the first module step that differs.
        others, given: as in `Case`.
        settings: what was in force when each run entered the module.
        steady: both runs repeat.
        recast: that step, where its results are of two types.
    """
    if recast is not None:
        return other_types([str(m.form[0]) for m in (recast.first, recast.second)], given)
    names = settings[1].differing(settings[0]) if settings else []
    if settings and names:
        x, y = (s.values[names[0]] for s in settings)
        detail = "late switch" if names[0] == SWITCH else names[0]
        return Diagnosis(
            kind_of(names[0]), detail,
            f"the module ran with {names[0]} = {x} in the first run and {y} in the second"
            + (": the switch came too late." if names[0] == SWITCH else "."), "setting",
        )  # fmt: skip
    if any(others):
        return other_operations(others, given, values)
    if not steady:
        return Diagnosis(
            "memory", "race", "a run differs from itself, and the difference did not show again "
            "while operations were recorded.", "repeat",
        )  # fmt: skip
    return Diagnosis(
        "unknown", "", "the results differ, and no operation that was seen does (what NumPy, or "
        "compiled code, computes is not seen)."
    )  # fmt: skip


def compiled(values: tuple[Bits, Bits]) -> Diagnosis:
    """Runs that agree when compiled code is run operation by operation."""
    close = small(values)
    return Diagnosis(
        "reordering" if close else "semantics", "compiled",
        "compiled code fuses operations and adds in another order than eager code."
        if close else "compiled code computes something else than eager code.", "compiled",
        ("Run eagerly, operation by operation, the two agree.",),
    )  # fmt: skip
