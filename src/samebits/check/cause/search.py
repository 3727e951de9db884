"""The search behind `explain`: from two runs to the operation, its cause, and the proof."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from samebits.check.cause.answers import Diagnosis, other_inputs
from samebits.check.cause.capture import Capture, Operation
from samebits.check.cause.case import Case
from samebits.check.cause.cuts import cut_wrongly, time_first
from samebits.check.cause.diagnosis import compiled, diagnose, without_operation
from samebits.check.cause.factors import Isolation
from samebits.check.cause.marks import Marks, Request, Step, aligned, operation, steps
from samebits.check.cause.runs import FIRST, SECOND, Filled, Function, Runs, Value
from samebits.check.cause.settings import Settings
from samebits.check.cause.trees import trees
from samebits.check.cause.twins import NoTwinError, Swap, Twins, twin
from samebits.check.compare import Bits, Difference, add, difference
from samebits.check.explanation import Amount, Explanation, ModuleMark, Place
from samebits.check.explanation import Swap as SwapResult
from samebits.check.tape import Key
from samebits.errors import SettingError, UncoveredError
from samebits.mode import deterministic, is_on

_TRIES = 3
"""How often operations are compared where runs do not repeat."""
_CANDIDATES = 6
"""Operations that differ and are looked at: all but the last were cut wrongly."""


class Search:
    """One explanation in the making."""

    def __init__(self, runs: Runs, twins: Twins) -> None:
        self.runs, self.twins = runs, twins
        self.evidence: list[str] = []
        self.steps: list[Step] = []
        self.modules: tuple[ModuleMark, ...] = ()
        self.marks: tuple[Marks, Marks] | None = None
        self.steady = True
        self.time_first = False
        self.until: int | None = None
        self.passed: list[Key] = []

    def run(self) -> Explanation:
        """The explanation, without what does not depend on the runs."""
        runs = self.runs
        self._compare_modules()
        self._repeat()
        plain = runs.results(*runs.returned)
        asked = self._asked()
        if asked is not None:
            self.until = asked.stage
        step = next((s for s in self.steps if self._counts(s)), None)
        if asked is not None and step is None:
            return self._explanation(other_inputs(asked, self.runs.module), Place(""),
                                     _amount(*self._values(asked)), [])  # fmt: skip
        if step is None and not plain.differing and self.steady:
            if not runs.comparable and all(s.differs is None for s in self.steps):
                raise SettingError(
                    "nothing in the two runs could be compared: no module gave tensors of one "
                    "shape in both, and neither did the calls; run the model in them, or align"
                )
            return Explanation("equal", "", evidence=self._compared(), modules=self.modules)
        if step is None and plain.differing and self.marks is not None:
            found = self._compiled(plain)
            if found is not None:
                return found
        owner = _owner(step)
        pair, others = self._operations(owner, step)
        if pair is None:
            return self._module(step, owner, others)
        return self._operation(pair, others)

    def _compare_modules(self) -> None:
        """Marks the modules of both runs and compares them."""
        module = self.runs.module
        if module is None:
            return
        self.marks = self.runs.both(lambda r, like: Marks(module, r, like=like))
        first, second = self.marks
        self.steps = list(steps(first.marks, second.marks))
        self.modules = tuple(
            ModuleMark(s.key[0] or "(whole)", operation(s.key)[1], s.differing, len(s.differs))
            for s in steps(first.outputs, second.outputs)
            if s.differs is not None
        )

    def _asked(self) -> Step | None:
        """Where the runs ask the model different things, if they do."""
        if self.marks is None or not self.runs.unannounced:
            return None
        first, second = self.marks
        return next((s for s in steps(first.inputs, second.inputs) if s.differing), None)

    def _counts(self, step: Step) -> bool:
        """Whether a step differs, before the runs ask different things (what was drawn, say)."""
        return step.differing > 0 and (self.until is None or step.stage < self.until)

    def _compared(self) -> tuple[str, ...]:
        """How much of the runs an answer of "equal" stands on."""
        if self.marks is None:
            return ()
        done = sum(s.differs is not None for s in self.steps)
        rest = len(self.steps) - done
        line = f"{done} arguments and outputs of modules were compared"
        return (f"{line}; {rest} others have other shapes in both runs." if rest else f"{line}.",)

    def _repeat(self) -> None:
        """Makes both runs again to see whether they repeat."""
        for side, name in ((FIRST, "first"), (SECOND, "second")):
            if not self.runs.repeats(side):
                self.steady = False
                self.evidence.append(f"The {name} run differs from itself when it is made again.")

    def _operations(
        self, owner: str | None, step: Step | None
    ) -> tuple[tuple[Operation, Operation] | None, tuple[list[Key], list[Key]]]:
        """The first operation that differs, and those around it that one of the runs alone has.

        Args:
            owner: the module whose operations they are; None: look at all.
            step: the first of the modules' steps that differs.
        """
        others: tuple[list[Key], list[Key]] = ([], [])
        for _ in range(1 if self.steady else _TRIES):
            x, y = self._marked(owner)
            self._faithful(x, y)
            partners = aligned(list(x.order), list(y.order))
            there = set(partners.values())
            others = (
                [k for k in x.order if k not in partners],
                [k for k in y.order if k not in there],
            )
            pair = self._first_of(x, y, step)
            if pair is None and self.time_first:
                pair = self._first_of(*self._marked(owner), step)
            if pair is not None:
                return pair, others
        return None, others

    def _marked(self, owner: str | None) -> tuple[Marks, Marks]:
        """Both runs with the operations of a module marked."""
        return self.runs.both(
            lambda r, like: Marks(
                self.runs.module, self._cut(r), like=like, operations=True, owner=owner
            )
        )

    def _cut(self, request: Request) -> Request:
        """A request as it is cut out of the results of operations."""
        return replace(request, time_first=self.time_first)

    def _first_of(
        self, x: Marks, y: Marks, step: Step | None
    ) -> tuple[Operation, Operation] | None:
        """The first operation that differs; None: there is none, or `time_first` was found out.

        An operation whose request was cut out at the wrong place is passed over.
        """
        self.passed = []
        found: dict[Key, Step] = {}
        for s in steps(x.marks, y.marks, aligned(list(x.order), list(y.order))):
            if self._counts(s) or s.recast:
                found.setdefault(operation(s.key), s)
        behind = functools.cache(lambda: self._values(step))
        for candidate in list(found.values())[:_CANDIDATES]:
            pair = self._capture(candidate)
            if pair is None:
                return None
            if candidate.recast or not cut_wrongly(*pair, behind):
                break
            if not self.time_first and time_first(*pair):
                self.time_first = True
                return None
            self.passed.append(pair[0].key)
        else:
            pair = None
        if self.passed:
            names = ", ".join(dict.fromkeys(k[1].removesuffix(".default") for k in self.passed))
            self.evidence.append(f"Passed over, as they hold the request at other places: {names}.")
        return pair

    def _faithful(self, x: Marks, y: Marks) -> None:
        """Whether recording operations left the modules' results as they were."""
        if self.marks is None or not self.steady:
            return
        for before, now in zip(self.marks, (x, y), strict=True):
            if any(s.differing for s in steps(before.outputs, now.outputs)):
                self.evidence.append("Recording operations changed the bits: take this as a hint.")
                return

    def _capture(self, step: Step) -> tuple[Operation, Operation] | None:
        """Takes the operation out of both runs, in the forward that holds the differing token.

        None: it did not run again, as it may be with runs that do not repeat.
        """
        pair = []
        for side, mark, part in ((FIRST, step.first, step.key), (SECOND, step.second, step.there)):
            key = operation(part)
            piece, place = mark.piece_of(step.token)
            request = self._cut(self.runs.requests[side])
            capture = Capture(self.runs.module, request, {key: piece})
            self.runs.play(side, capture)
            if key not in capture.found:
                return None
            op = capture.found[key]
            op.twin = self.twins.get(op.func._schema.name)
            op.token = place if mark.axis >= 0 else 0
            op.alone = len(step.first.pieces[0]) != len(step.second.pieces[0])
            pair.append(op)
        return pair[0], pair[1]

    def _operation(
        self, pair: tuple[Operation, Operation], others: tuple[list[Key], list[Key]]
    ) -> Explanation:
        """What is to be said when the operation is known."""
        first, second = pair
        case = Case(
            Isolation(first, second), others, self._given(first.key[0]),
            functools.cache(self._filled), self.passed,
        )  # fmt: skip
        found = diagnose(case)
        self.evidence += _kernels(first, second)
        added = trees(case.isolation) if found.kind == "reordering" else ()
        if found.made_by is not None:
            return self._blamed(case, found)
        swaps = self._swaps(pair)
        return self._explanation(
            found,
            Place(
                first.key[0], str(first.func), first.site, self._kind(first.key[0]),
                None if second.func is first.func else str(second.func),
                (first.shapes, second.shapes),
            ),
            _amount(*case.isolation.want, found.of_bound),
            swaps, added,
        )  # fmt: skip

    def _blamed(self, case: Case, found: Diagnosis) -> Explanation:
        """What is to be said of an operation before the first that could be compared."""
        key = found.made_by
        assert key is not None
        pair = []
        for side in (FIRST, SECOND):
            request = self._cut(self.runs.requests[side])
            capture = Capture(self.runs.module, request, {key: 0})
            self.runs.play(side, capture)
            if key in capture.found:
                pair.append(capture.found[key])
        place = Place(key[0], key[1], module_kind=self._kind(key[0]))
        swaps = [] if is_on() else self._switched()
        if len(pair) == 2:
            first, second = pair
            place = replace(place, site=first.site, shapes=(first.shapes, second.shapes))
            self.evidence += _kernels(first, second)
            swaps = self._swaps((first, second))
        amount = _amount(*case.isolation.want)
        return self._explanation(found, place, amount, swaps)

    def _module(
        self, step: Step | None, owner: str | None, others: tuple[list[Key], list[Key]]
    ) -> Explanation:
        """What is to be said when no operation that both runs have differs."""
        values = self._values(step)
        found = without_operation(
            values, others, self._given(owner or ""), self._settings(owner or ""), self.steady
        )
        place = Place(owner or "", module_kind=self._kind(owner or ""))
        if others[0]:
            capture = Capture(self.runs.module, self.runs.requests[FIRST], {others[0][0]: 0})
            self.runs.play(FIRST, capture)
            op = capture.found.get(others[0][0])
            names = ", ".join(dict.fromkeys(key[1] for key in others[1])) or None
            if op is not None:
                place = replace(place, op=str(op.func), site=op.site, other_op=names,
                                shapes=(op.shapes, ()))  # fmt: skip
        return self._explanation(
            found, place,
            _amount(*values),
            [] if is_on() else self._switched(),
        )  # fmt: skip

    def _values(self, step: Step | None) -> tuple[Bits, Bits]:
        """The results of a module step in both runs."""
        if step is None:
            x, y = self.runs.returned
            pairs = [(a, b) for a, b in zip(x, y, strict=False) if a.shape == b.shape]
            return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
        found = []
        for side in (FIRST, SECOND):
            tape = Value(self.runs.module, self.runs.requests[side], step.key)
            self.runs.play(side, tape)
            found.append(tape.joined())
        return found[0], found[1]

    def _compiled(self, plain: Difference) -> Explanation | None:
        """Runs that agree step by step and differ as wholes: what is compiled, fused or timed."""
        torch_compiler: Any = torch.compiler
        with torch_compiler.set_stance("force_eager"):
            eager = self.runs.results(*(self.runs.plain(side) for side in (FIRST, SECOND)))
        if eager.differing:
            return None
        values = self._values(None)
        module = self.runs.module
        named = module.named_modules() if module is not None else ()
        name = next((name for name, m in named if _is_compiled(m)), "")
        place = Place(name, module_kind=self._kind(name))
        return self._explanation(compiled(values), place, _amount(*values), [])

    def _explanation(
        self,
        found: Diagnosis,
        place: Place,
        amount: Amount | None,
        swaps: list[SwapResult],
        trees: tuple[str, ...] = (),
    ) -> Explanation:
        return Explanation(
            verdict="differs", target="", kind=found.kind, cause=found.cause, detail=found.detail,
            trigger=found.trigger, place=place, amount=amount,
            evidence=(*self.evidence, *found.evidence), factors=found.factors,
            swaps=tuple(swaps), modules=self.modules, trees=trees,
        )  # fmt: skip

    def _given(self, owner: str) -> list[tuple[str, str, str]]:
        """Arguments of a module that differ in form."""
        if self.marks is None:
            return []
        x, y = (m.given.get(owner, {}) for m in self.marks)
        return [
            (name, x.get(name, "None"), y.get(name, "None"))
            for name in dict.fromkeys([*x, *y])
            if x.get(name, "None") != y.get(name, "None")
        ]

    def _settings(self, owner: str) -> tuple[Settings, Settings] | None:
        """What was in force when both runs entered a module."""
        if self.marks is None:
            return None
        x, y = (m.settings.get(owner) for m in self.marks)
        return (x, y) if x is not None and y is not None else None

    def _kind(self, name: str) -> str:
        """The class of a module."""
        if self.runs.module is None:
            return ""
        found = dict(self.runs.module.named_modules()).get(name)
        return "" if found is None or isinstance(found, Function) else type(found).__name__

    def _filled(self, value: float) -> tuple[bool, int, int]:
        """Both runs with fresh memory filled: do they agree, tensors filled, NaN that came out."""
        found: list[Filled] = []

        def make(request: Request, like: Marks | None) -> Marks:
            found.append(Filled(self.runs.module, request, like, value))
            return found[-1]

        x, y = self.runs.both(make)
        agree = not _still_differing(x, y, self.runs)[0]
        return agree, sum(f.filled for f in found), sum(f.bad for f in found)

    def _swaps(self, pair: tuple[Operation, Operation]) -> list[SwapResult]:
        """Both runs with twins: of this operation alone, then of all of its name, of everything."""
        short = str(pair[0].func).removesuffix(".default")
        found: list[SwapResult] = []
        try:
            twins = {op.func: twin(op.func, self.twins, [op]) for op in pair}
            alone = self._swap(
                f"this {short} alone",
                lambda side, key, func: twins.get(func) if key == pair[side].key else None,
            )
            found.append(alone)
            if alone.differing:
                found.append(
                    self._swap(f"every {short}", lambda _side, _key, func: twins.get(func))
                )
        except NoTwinError as reason:
            self.evidence.append(f"Not exchanged for its contract: {reason}.")
        except UncoveredError as reason:
            self.evidence.append(f"Its contract does not cover these operands: {reason}")
        if not is_on() and (not found or found[-1].differing):
            found.extend(self._switched())
        return found

    def _swap(
        self, what: str, chosen: Callable[[int, Key, Any], Callable[..., Any] | None]
    ) -> SwapResult:
        made: list[Swap] = []

        def make(request: Request, like: Marks | None) -> Marks:
            this = functools.partial(chosen, len(made))
            made.append(Swap(self.runs.module, request, this, like=like))
            return made[-1]

        x, y = self.runs.both(make)
        return SwapResult(what, sum(s.replaced for s in made), *_still_differing(x, y, self.runs))

    def _switched(self) -> list[SwapResult]:
        """Both runs with the switch on."""
        module = self.runs.module
        try:
            with deterministic():
                x, y = self.runs.both(lambda r, like: Marks(module, r, like=like))
        except UncoveredError as error:
            self.evidence.append(f"With the switch on it does not run: {error}")
            return []
        return [SwapResult("everything (the switch)", 0, *_still_differing(x, y, self.runs))]


def _kernels(first: Operation, second: Operation) -> list[str]:
    """Which GPU kernels the two calls launch."""
    x, y = (", ".join(op.kernels()) for op in (first, second))
    if not x or not y:
        return []
    return [f"Both launch {x}."] if x == y else [f"The first launches {x}, the second {y}."]


def _amount(
    x: Sequence[torch.Tensor],
    y: Sequence[torch.Tensor],
    of_bound: tuple[float, float] | None = None,
) -> Amount:
    """How much two results differ; results of different types in every element."""
    parts = [
        difference((a,), (b,)) if a.dtype == b.dtype else Difference(a.numel(), a.numel())
        for a, b in zip(x, y, strict=False)
        if a.shape == b.shape
    ]
    found = add(parts)
    return Amount(found.differing, found.elements, found.max_ulp, found.nonfinite, of_bound)


def _owner(step: Step | None) -> str | None:
    """The module whose own operations part the runs; None: unknown, look at all."""
    if step is None:
        return None
    return step.first.parent if step.key[1].startswith("enter ") else step.key[0]


def _still_differing(x: Marks, y: Marks, runs: Runs) -> tuple[int, str | None]:
    """How many modules' outputs differ, and the first; without modules, of the returned tensors."""
    if runs.module is None:
        count = runs.results(*runs.last).differing
        return int(count > 0), "(result)" if count else None
    names = [s.key[0] or "(whole)" for s in steps(x.outputs, y.outputs) if s.differing]
    return len(names), names[0] if names else None


def _is_compiled(module: torch.nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
