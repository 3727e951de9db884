"""What detectors have in common: the form of their answer, and lines of evidence."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from samebits.check.cause.capture import parameter
from samebits.check.cause.case import Case, small
from samebits.check.cause.marks import Step
from samebits.check.compare import Bits
from samebits.check.explanation import Factor
from samebits.check.tape import Key
from samebits.mode.coverage import moves_data


@dataclass(frozen=True)
class Diagnosis:
    """The answer: see `samebits.check.explanation.Explanation`.

    `made_by`: the operation to blame, where it is not the first that could be compared.
    """

    kind: str
    detail: str
    cause: str
    trigger: str | None = None
    evidence: tuple[str, ...] = ()
    factors: tuple[Factor, ...] = ()
    of_bound: tuple[float, float] | None = None
    made_by: Key | None = None


def other_operations(
    others: tuple[list[Key], list[Key]],
    given: list[tuple[str, str, str]],
    values: tuple[Bits, Bits],
) -> Diagnosis:
    """The runs took other operations; arguments as `without_operation` of `diagnosis` has them."""
    names = [
        ", ".join(dict.fromkeys(key[1].removesuffix(".default") for key in side)) or "nothing"
        for side in others
    ]
    lines = tuple(f"{n}: {a} in the first run, {b} in the second." for n, a, b in given)
    mask = any("mask" in n for n, _, _ in given)
    return Diagnosis(
        "reordering" if small(values) else "semantics", "other kernel",
        f"the runs take other operations here: {names[0]} against {names[1]}.",
        "mask" if mask else "argument" if given else None, lines,
    )  # fmt: skip


def other_inputs(step: Step, module: torch.nn.Module | None) -> Diagnosis:
    """The model was asked different things; `step`: its first argument in both runs."""
    label = step.key[1].partition("[")[2].partition("]")[0]
    if label.isdigit():
        label = parameter(module, int(label))
    assert step.differs is not None
    where = (
        f"in {step.differing} of {len(step.differs)} tokens, first in token {step.token}"
        if len(step.differs) > 1
        else "for the request"
    )
    return Diagnosis(
        "inputs", "argument", f"the runs are given different inputs: {label} differs {where}.",
        "inputs",
    )  # fmt: skip


def bound_line(case: Case) -> tuple[str, ...]:
    """What the results are worth against the exact one and against other orders."""
    found = case.noise
    if found is not None:
        can = (
            f"{found.outside:,} of {found.elements:,} results can come from no order of additions"
            if found.outside
            else f"All {found.elements:,} results of a sample can come from some order of additions"
        )
        return (
            f"{can}; they lie {found.times:.2g} times as far apart as other orders of the same "
            "operands do."
            + (
                " That is more than orders do: look for fewer bits or another algorithm."
                if found.verdict == "suspect"
                else ""
            ),
        )
    if case.of_bound is None:
        return ()
    a, b = (f"{100 * s:.3g} %" for s in case.of_bound)
    word = "Both results are" if max(case.of_bound) <= 1 else "Not both results are"
    return (
        f"{word} within the error that rounding can cause in any order: the first uses {a} of it, "
        f"the second {b}.",
    )


def sweep(case: Case, factor: Factor | None) -> tuple[str, ...]:
    """Which numbers of rows have whose bits, where rows are the trigger."""
    if factor is None or factor.name != "rows":
        return ()
    return (f"By number of rows: {case.isolation.sweep()}.",)


def moves(key: Key) -> bool:
    """Whether an operation only moves data."""
    library, _, name = key[1].partition(".")
    return library == "aten" and moves_data(name)


def first_difference(case: Case, i: int) -> str:
    """Where operand `i` comes in."""
    a, b = case.first.operands[i], case.second.operands[i]
    shapes = f"{tuple(a.shape)} against {tuple(b.shape)}"
    return f"Operand {i} ({case.argument_name(i)}, {shapes}) differs before the operation runs."
