"""Detectors of computations with fewer bits: types, rounded operands, results that lost bits."""

from __future__ import annotations

from samebits.check.cause.answers import Diagnosis, sweep
from samebits.check.cause.case import Case
from samebits.check.cause.products import rounding


def rounded(case: Case) -> Diagnosis | None:
    """An operand is the other run's, rounded to fewer bits."""
    for i, _ in case.unlike:
        a, b = (op.parts([op.operands[i]]) for op in (case.first, case.second))
        found = rounding(a[0], b[0]) if a and b else None
        if found is None:
            continue
        run, label = ("first", "second")[found[0]], found[1]
        cast = any("_to_copy" in key[1] for side in case.others for key in side)
        if label == "fp16" and any(case.others) and not cast:
            label = "tf32"  # as many bits, and nothing was cast
        return Diagnosis(
            "precision", label,
            f"{case.op} is given {case.argument_name(i)} with the bits of {label} in the {run} "
            "run.", "argument" if case.given else "dtype" if any(case.others) else None,
            (f"Operand {i} of the {run} run is the other run's, rounded to {label}.",),
        )  # fmt: skip
    return None


def dtype(case: Case) -> Diagnosis | None:
    """Operands of another type."""
    x, y = case.first.operands, case.second.operands
    pairs = [(a.dtype, b.dtype) for a, b in zip(x, y, strict=False) if a.dtype != b.dtype]
    if not pairs:
        return None
    a, b = (str(d).removeprefix("torch.") for d in pairs[0])
    return Diagnosis(
        "precision", "dtype", f"{case.op} computed in {a} in one run and in {b} in the other.",
        "dtype",
    )  # fmt: skip


def narrow(case: Case) -> Diagnosis | None:
    """One result has the distance from the exact one that fewer bits give."""
    if case.unlike:
        return None
    found = case.narrower
    if found[0] == found[1]:
        return None
    which, label = (0, found[0]) if found[0] else (1, found[1])
    run = ("first", "second")[which]
    factor = case.turning("rows", "layout", "argument", "neighbours", "position")
    return Diagnosis(
        "precision", str(label),
        f"{case.op} computed with {label} in the {run} run.", factor.name if factor else None,
        (f"The {run} run's result is nearer to an exact computation with {label} than to one with "
         "its operands as they are.", *sweep(case, factor)),
    )  # fmt: skip
