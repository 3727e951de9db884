"""A detector for each kind of cause: it looks at a case and gives a diagnosis, or None."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from samebits import bits
from samebits.check.cause.answers import (
    Diagnosis,
    bound_line,
    first_difference,
    moves,
    other_operations,
    sweep,
)
from samebits.check.cause.capture import base_name
from samebits.check.cause.case import Case, small
from samebits.check.cause.factors import arguments_that_differ, same
from samebits.check.cause.settings import SWITCH, RandomState, kind_of, random_state
from samebits.check.explanation import Factor
from samebits.check.tape import Key

_ORDERINGS = {
    "topk", "sort", "argsort", "argmax", "argmin", "max", "min", "kthvalue", "mode", "median",
    "nanmedian", "aminmax",
}  # fmt: skip
_DRAWS = 8
#: In names of arguments that say how to compute, and not what.
_EXECUTION = re.compile(r"split|block|tile|chunk|stage|warp|algo|backend|kernel|workspace")
#: In names of arguments that hand over what earlier calls left: not inputs, but state.
_KEPT = ("past", "cache", "state")


def random_numbers(case: Case) -> Diagnosis | None:
    """The operation draws: another seed gives other bits."""
    drawn = next(((i, o) for i, o in case.unlike if o.random), None)
    if drawn is not None and case.same_place(drawn[0]):
        return Diagnosis(
            "random", "state",
            f"{case.op} is given {drawn[1]}: random numbers, and the generator had another state.",
            "seed",
        )  # fmt: skip
    if drawn is not None:
        return Diagnosis(
            "random", "operand",
            f"{case.op} is given {drawn[1]}: random numbers, drawn from one generator for the "
            "whole batch.", "rows",
        )  # fmt: skip
    if torch.Tag.nondeterministic_seeded not in case.second.func.tags or case.unlike:
        return None
    op = case.second
    plain = op.parts(case.isolation.alone[1])
    seeds = [_seeded(i) for i in range(_DRAWS)]
    if all(same(op.parts(op.run(random=state)), plain) for state in seeds):
        return None  # it could draw (dropout), and does not
    mine = op.parts(op.run(random=case.first.random))
    if same(mine, case.isolation.want[0]):
        return Diagnosis(
            "random", "state",
            f"{case.op} draws random numbers, and the generator had another state.", "seed",
            ("From the same state of the generator both runs have the same bits.",),
        )  # fmt: skip
    count = tuple(case.first.output[0].shape), tuple(case.second.output[0].shape)
    if count[0] == count[1] and case.first.row == case.second.row:
        return Diagnosis(
            "random", "state",
            f"{case.op} draws random numbers from a generator that is not torch's default one, and "
            "it had another state.", "seed",
        )  # fmt: skip
    return Diagnosis(
        "random", "shape",
        f"{case.op} draws random numbers for the whole batch from one generator, so a request's "
        "depend on its neighbours.", "rows",
        (f"From the same state of the generator the numbers still differ: {count[0]} and "
         f"{count[1]} are drawn.",),
    )  # fmt: skip


def ties(case: Case) -> Diagnosis | None:
    """Indices differ, and what they point at is equal."""
    if case.unlike:
        return None
    x, y = case.isolation.want
    indices = [
        (a, b)
        for a, b in zip(x, y, strict=False)
        if not a.is_floating_point() and a.shape == b.shape
    ]
    values = [(a, b) for a, b in zip(x, y, strict=False) if a.is_floating_point()]
    if not indices or not all(bits.equal(a, b) for a, b in values):
        return None
    moved = sum(int((a != b).sum()) for a, b in indices)
    ranks = base_name(case.first.func) in _ORDERINGS
    if not (values or (ranks and _point_at_equals(case, indices[0]))):
        return None
    factor = case.turning("rows", "position", "neighbours", "layout", "threads", "argument")
    return Diagnosis(
        "ties", "order",
        f"{case.op} ranks equal values in another order.", factor.name if factor else None,
        (f"{moved} indices differ, and the values that they point at are equal.",),
    )  # fmt: skip


def uninitialised(case: Case) -> Diagnosis | None:
    """An operand's memory was handed out without contents, and filling it decides the result."""
    suspicious = any(case.origin(i).born_empty for i, _ in case.differing)
    hidden = not case.unlike and not case.isolation.reproduced
    if not suspicious and not hidden:
        return None
    agree, count, _ = case.filled(0.0)
    if not count or not agree:
        return None
    _, _, nan = case.filled(float("nan"))
    if not nan:
        return None
    return Diagnosis(
        "memory", "uninitialised",
        f"{case.op} reads memory that nobody has written.", "history",
        (
            f"With fresh memory filled with zeros ({count} tensors) the runs agree.",
            f"Filled with NaN, {nan} NaN come out of the modules: the contents are read.",
        ),
    )  # fmt: skip


def batch_scale(case: Case) -> Diagnosis | None:
    """An operand was computed from the whole batch."""
    found = next(((i, o) for i, o in case.unlike if o.reduces), None)
    if found is None:
        return None
    i, origin = found
    factor = case.turning("operand")
    return Diagnosis(
        "scale", "operand",
        f"{case.op} uses {origin}, which is computed over the whole batch.", "neighbours",
        (
            f"Operand {i} ({origin}) is not the same in both runs although the request is.",
            *(["With the first run's value the bits are the first run's."] if factor else []),
        ),
    )  # fmt: skip


def other_order(case: Case) -> Diagnosis | None:
    """The model itself adds the same terms in another order: partial sums differ, and no total."""
    if base_name(case.first.func) not in ("add", "mul") or not case.unlike or small(case.values):
        return None
    if any(origin.name or origin.asked for _, origin in case.unlike) or not small(case.behind()):
        return None
    return Diagnosis(
        "reordering", "order", f"the runs call {case.op} on the same terms in another order.", None,
        ("Its results are far apart, and those of the module only by rounding.",),
    )  # fmt: skip


def state(case: Case) -> Diagnosis | None:
    """An operand from outside the module's own operations is not the same."""
    for i, origin in case.unlike:
        if case.of_one_run(i) or (origin.made_by is not None and not moves(origin.made_by)):
            continue
        name = case.argument_name(i)
        mask = "mask" in f"{name} {origin.argument}"
        known = origin.name or origin.made_by or origin.argument
        what = origin if known else f"{name}, kept from before"
        factor = case.turning("operand")
        if origin.asked and not mask and not any(word in origin.asked for word in _KEPT):
            return Diagnosis(
                "inputs", origin.asked,
                f"the runs are given different inputs: {origin.asked}, which {case.op} takes, is "
                "not the same.", "inputs", (first_difference(case, i),),
            )  # fmt: skip
        return Diagnosis(
            "semantics", "mask" if mask else "state",
            f"{case.op} is given another {'mask' if mask else 'state'}: {what} is not the same in "
            "both runs.", "mask" if mask else "state",
            (
                first_difference(case, i),
                *(["With the first run's operand the bits are the first run's."] if factor else []),
            ),
        )  # fmt: skip
    return None


def setting(case: Case) -> Diagnosis | None:
    """A flag was not the same when the operation ran."""
    names = case.second.settings.differing(case.first.settings)
    if not names or case.unlike:
        return None
    turned = case.turning("setting", "threads")
    if turned is None and same(*_both_under(case)):
        turned = Factor("setting", ", ".join(names), "first")
    if turned is None:
        return None
    name = turned.change.partition(":")[0]
    values = case.first.settings.values.get(name), case.second.settings.values.get(name)
    kind = kind_of(name)
    if kind == "reordering" and not case.within:
        return None
    late = name == SWITCH
    detail = "late switch" if late else name
    cause = (
        f"{case.op} ran with the switch {'on' if values[0] else 'off'} in the first run and "
        f"{'on' if values[1] else 'off'} in the second: it was turned too late."
        if late
        else f"{case.op} ran under another setting: {name} was {values[0]}, then {values[1]}."
    )
    narrowed = case.narrower
    return Diagnosis(
        kind, next((n for n in narrowed if n), detail) if kind == "precision" else detail,
        cause, "threads" if name == "threads" else "setting",
        (f"With {name} = {values[0]} the second run's call gives the first run's bits.",),
    )  # fmt: skip


def run_to_run(case: Case) -> Diagnosis | None:
    """The operation by itself does not repeat."""
    if all(case.isolation.repeats) or case.unlike:
        return None
    if case.steady_within:
        return Diagnosis(
            "reordering", "atomic",
            f"{case.op} adds in an order that changes from call to call (atomic additions, or "
            "work handed out as it comes).", "repeat",
            ("The same call with the same operands gives other bits, all within rounding.",),
        )  # fmt: skip
    return Diagnosis(
        "memory", "race",
        f"{case.op} gives other results from call to call, and farther apart than any order of "
        "its additions could make them: a race, or memory that it must not read.", "repeat",
        ("The same call with the same operands gives other bits, beyond rounding.",),
    )  # fmt: skip


def not_a_number(case: Case) -> Diagnosis | None:
    """NaN or infinity in one result alone, out of finite operands of the request."""
    x, y = case.isolation.want
    finite = [all(bool(t.isfinite().all()) for t in want) for want in (x, y)]
    if finite[0] == finite[1]:
        return None
    bad = case.second if finite[0] else case.first
    own = [p for t in bad.operands for p in bad.parts([t])]
    if not all(bool(t.isfinite().all()) for t in own if t.is_floating_point()):
        return None
    turned = case.turning("neighbours")
    return Diagnosis(
        "memory", "nan",
        f"{case.op} lets NaN or infinity of a neighbour, or of a masked place, into the result.",
        turned.name if turned else None,
        ("The request's own operands are finite, and its result is not.",),
    )  # fmt: skip


def argument(case: Case) -> Diagnosis | None:
    """The operation was called with another argument that means something."""
    unlike = arguments_that_differ(case.first, case.second)
    if not unlike or case.unlike:
        return None
    # A mask and "is causal" go together; the mask is what a reader looks for.
    name, a, b = next((u for u in unlike if "mask" in u[0]), unlike[0])
    same = case.judgement.alike if case.judgement else bool(_EXECUTION.search(name))
    if same and case.within:
        lengths = case.first.window.length, case.second.window.length
        mask = "mask" in name
        tokens = lengths[0] != lengths[1] and not mask
        how = f"computes {lengths[1]} tokens at once instead of {lengths[0]}" if tokens else (
            f"was called with another {name} that means the same here"
        )  # fmt: skip
        return Diagnosis(
            "reordering", "other kernel", f"{case.op} {how}, which chooses another kernel.",
            "mask" if mask else "tokens" if tokens else name,
            (f"{name} is {a} in the first run and {b} in the second"
             + ("; computed exactly, both give the same." if case.judgement else "."),),
        )  # fmt: skip
    return Diagnosis(
        "semantics", "mask" if "mask" in name else name,
        f"{case.op} was called with {name} = {a} in the first run and {b} in the second.",
        "mask" if "mask" in name else name,
    )  # fmt: skip


def other_kernel(case: Case) -> Diagnosis | None:
    """What made the differing operand ran in one run only."""
    if not any(case.of_one_run(i) for i, _ in case.unlike):
        return None
    return other_operations(case.others, case.given, case.values)


def handed_on(case: Case) -> Diagnosis | None:
    """An operand was computed where the request's rows could not be told from others'.

    So it is with the experts of a mixture: they compute gathered rows, whoever sent them.
    """
    made = [o.made_by for _, o in case.unlike]
    for a, b, origin in zip(
        case.first.operands, case.second.operands, case.second.origins, strict=False
    ):
        alone = not case.second.parts([b]) or moves(case.first.key)
        if a.shape != b.shape and b.is_floating_point() and alone:
            made.append(origin.made_by)
    key = next((k for k in made if k is not None and not moves(k)), None)
    return None if key is None else _feeds(case, key)


def passed_over(case: Case) -> Diagnosis | None:
    """The rows are put back in their places, by an operation that computes nothing."""
    computing = [key for key in case.passed if not moves(key)]
    return _feeds(case, computing[-1]) if computing and moves(case.first.key) else None


def _feeds(case: Case, key: Key) -> Diagnosis:
    """An operation whose results could not be compared before they reached the case's."""
    name = key[1].removesuffix(".default")
    close = small(case.values)
    return Diagnosis(
        "reordering" if close else "semantics", "not compared",
        f"{name}, which feeds {case.op} and could not be compared by itself, "
        + ("adds in another order." if close else "computes something else."),
        "rows" if case.first.shapes != case.second.shapes else None,
        (f"The result of {name} has no part that is the request's alone in both runs, so {case.op} "
         "is the first step that could be compared.",),
        made_by=key,
    )  # fmt: skip


def neighbours(case: Case) -> Diagnosis | None:
    """The contents of other rows matter, which no order of summation can cause."""
    if case.unlike or not case.isolation.reproduced:
        return None
    touched = [
        f for f in case.factors if f.name == "neighbours" and f.outcome in ("first", "other")
    ]
    if not touched:
        return None
    if moves(case.first.key):
        return Diagnosis(
            "semantics", "neighbours",
            f"{case.op} moves data between rows: the request is given a neighbour's.", "neighbours",
            (f"With {touched[0].change}, and as many rows, the request's bits change.",),
        )  # fmt: skip
    return Diagnosis(
        "scale", "neighbours",
        f"{case.op} computes something over the whole batch that scales every row.", "neighbours",
        (f"With {touched[0].change}, and as many rows, the request's bits change.",),
    )  # fmt: skip


def history(case: Case) -> Diagnosis | None:
    """The operands decide nothing: what ran before does."""
    if case.isolation.reproduced or case.unlike:
        return None
    close = case.within
    return Diagnosis(
        "reordering" if close else "memory", "history",
        f"{case.op} gives other bits by itself than in the model, with the same operands: what "
        "ran before it matters (a cached choice of kernel, a workspace, hidden state).", "history",
        ("Taken out of the model the two calls agree."
         if same(*_alone_parts(case)) else "Taken out of the model its bits are others.",),
    )  # fmt: skip


def reordering(case: Case) -> Diagnosis | None:
    """Everything is the same but the order of additions: both results are within rounding."""
    if case.unlike or not case.within or moves(case.first.key):
        return None
    if case.judgement is not None and not case.judgement.alike and any(case.others):
        return other_operations(case.others, case.given, case.values)  # operands that were not cut
    factor = case.turning("rows", "position", "layout", "neighbours")
    words = {
        "rows": "the number of rows",
        "position": "the row's place in the batch",
        "layout": "how its operands lie in memory",
        "neighbours": "the other rows",
        "tokens": "how many tokens are computed at once",
        "shape": "the sizes of its operands",
    }
    trigger = factor.name if factor else None
    if trigger is None and case.first.shapes != case.second.shapes:
        cut = case.first.window.length != case.second.window.length
        trigger = "tokens" if cut else "shape"
    return Diagnosis(
        "reordering", "kernel" if trigger else "",
        f"{case.op} adds in another order"
        + (f", chosen by {words[trigger]}." if trigger else "."), trigger,
        (*bound_line(case), *sweep(case, factor)),
    )  # fmt: skip


def defect(case: Case) -> Diagnosis:
    """Nothing explains it, and it is more than rounding."""
    if case.unlike and any(case.others):
        return other_operations(case.others, case.given, case.values)
    if case.unlike:
        return Diagnosis(
            "semantics", "operands", f"{case.op} is given other operands.", None,
            (first_difference(case, case.unlike[0][0]),),
        )  # fmt: skip
    factor = case.turning("rows", "position", "layout", "neighbours", "operand")
    trigger = factor.name if factor else None
    if case.bounded:
        return Diagnosis(
            "semantics", "beyond rounding",
            f"{case.op} computes something else: no order of additions gives results so far "
            "apart.", trigger, (*bound_line(case), *sweep(case, factor)),
        )  # fmt: skip
    if not factor:
        return Diagnosis("unknown", "", f"{case.op} differs, and no experiment says why.")
    return Diagnosis(
        "unknown", "no bound",
        f"{case.op} gives other results, farther apart than a few hundred roundings; how far "
        "orders of its additions may lie apart is not known.", trigger, sweep(case, factor),
    )  # fmt: skip


def _both_under(case: Case) -> Iterator[list[torch.Tensor]]:
    """Both calls under the first one's settings."""
    for op in (case.first, case.second):
        yield op.parts(op.run(settings=case.first.settings))


def _alone_parts(case: Case) -> Iterator[list[torch.Tensor]]:
    for op, results in zip((case.first, case.second), case.isolation.alone, strict=True):
        yield op.parts(results)


def _seeded(seed: int) -> RandomState:
    """The generators' states after a seed."""
    before = random_state()
    torch.manual_seed(seed)
    found = random_state()
    before.restore()
    return found


def _point_at_equals(case: Case, pair: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Whether indices of both runs point at equal values of the request's operand."""
    values = case.first.parts(case.first.operands[:1])
    if not values:
        return False
    flat = values[0].reshape(-1)
    a, b = (t.reshape(-1) for t in pair)
    if max(int(a.max()), int(b.max())) < flat.numel() and values[0].dim() == 1:
        return bits.equal(flat[a], flat[b])
    x, y = (values[0].gather(-1, t.reshape(*values[0].shape[:-1], -1)) for t in pair)
    return bits.equal(x, y)
