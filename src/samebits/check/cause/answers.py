"""What detectors have in common: the form of their answer, and lines of evidence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from samebits.check.cause.capture import parameter
from samebits.check.cause.case import Case, small
from samebits.check.cause.marks import Step
from samebits.check.cause.returned import Compared
from samebits.check.compare import Bits
from samebits.check.explanation import Factor
from samebits.check.tape import Key
from samebits.mode.coverage import moves_data

_CAST = "aten._to_copy"
#: Products, which may be computed elsewhere in the module if their operands are cast by hand.
_PRODUCT = r"aten\.(addmm|mm|bmm|baddbmm|addmv|mv|dot|convolution|mkldnn_\w+|_scaled_mm)\..*"
_SHOWN = 4
"""Returned values that are named one by one."""


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
    mask = any("mask" in n for n, _, _ in given)
    taken = {key[1].removesuffix(".default") for side in others for key in side}
    computing = {key[1] for side in others for key in side if not moves(key)}
    casts = not all(others) and _CAST in taken
    if casts and all(re.fullmatch(_PRODUCT, name) for name in computing):
        run = "first" if others[0] else "second"
        rest = " for a product" if computing else ""
        return Diagnosis(
            "precision", "dtype", f"only the {run} run casts here{rest}: {_CAST}.",
            "argument" if given else "dtype", _given_lines(given),
        )  # fmt: skip
    return Diagnosis(
        "reordering" if small(values) else "semantics", "other kernel",
        f"the runs take other operations here: {names[0]} against {names[1]}.",
        "mask" if mask else "argument" if given else None, _given_lines(given),
    )  # fmt: skip


def other_types(
    types: Sequence[str], given: list[tuple[str, str, str]], what: str = "the module's results"
) -> Diagnosis:
    """Results of two types; `given` as `without_operation` of `diagnosis` has it."""
    x, y = (name.removeprefix("torch.") for name in types)
    return Diagnosis(
        "precision", "dtype", f"{what} are {x} in the first run and {y} in the second.",
        "argument" if given else "dtype", _given_lines(given),
    )  # fmt: skip


def other_results(found: Compared, given: list[tuple[str, str, str]]) -> Diagnosis:
    """The calls return other things although every step of the modules agrees.

    `given`: arguments of the model that differ in form, as `without_operation` has them.
    """
    first = found.apart[0]
    lines = (*map(str, found.apart[1:_SHOWN]), *_given_lines(given))
    name = first.label or "the results"
    if first.what == "dtype":
        types = [form.rpartition(" ")[2] for form in (first.first, first.second)]
        return replace(other_types(types, given, name), evidence=lines)
    if given and first.what == "value":
        arguments = ", ".join(n for n, _, _ in given)
        return Diagnosis(
            "inputs", given[0][0], f"the runs are given different inputs: {arguments}. {first}",
            "inputs", lines,
        )  # fmt: skip
    return Diagnosis(
        "semantics", "shape" if first.what == "shape" else "result", str(first),
        "argument" if given else None,
        ("Every step of the model that could be compared agrees.", *lines),
    )  # fmt: skip


def _given_lines(given: list[tuple[str, str, str]]) -> tuple[str, ...]:
    return tuple(f"{n}: {a} in the first run, {b} in the second." for n, a, b in given)


def other_inputs(step: Step, module: torch.nn.Module | None) -> Diagnosis:
    """The model was asked different things; `step`: its first argument in both runs."""
    label = step.key[1].partition("[")[2].partition("]")[0]
    if label.isdigit():
        label = parameter(module, int(label))
    if step.differs is None:
        x, y = (str(mark.form[0]).removeprefix("torch.") for mark in (step.first, step.second))
        where = f"in its type: {x} against {y}"
    elif len(step.differs) > 1:
        where = f"in {step.differing} of {len(step.differs)} tokens, first in token {step.token}"
    else:
        where = "for the request"
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
