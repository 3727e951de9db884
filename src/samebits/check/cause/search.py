"""The search behind `explain`: from two runs to the operation, its cause, and the proof."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from samebits.check.cause.answers import Diagnosis, other_inputs, other_results
from samebits.check.cause.capture import Capture, Operation, parameter
from samebits.check.cause.case import Case
from samebits.check.cause.cuts import cut_wrongly, time_first
from samebits.check.cause.diagnosis import compiled, diagnose, without_operation
from samebits.check.cause.exchange import Exchange, still_differing
from samebits.check.cause.factors import Isolation
from samebits.check.cause.flow import RETURNED
from samebits.check.cause.marks import Marks, Request, Step, aligned, operation, steps
from samebits.check.cause.runs import FIRST, SECOND, Filled, Function, Runs, Value
from samebits.check.cause.settings import Settings
from samebits.check.cause.trees import trees
from samebits.check.cause.twins import Twins
from samebits.check.compare import Bits, Difference, add, difference
from samebits.check.explanation import Amount, Explanation, ModuleMark, Place
from samebits.check.explanation import Swap as SwapResult
from samebits.check.tape import Key
from samebits.errors import SettingError

_TRIES = 6
"""How often operations are compared where runs do not repeat."""
_CANDIDATES = 6
"""Operations that differ and are looked at: all but the last were cut wrongly."""


class Search:
    """One explanation in the making."""

    def __init__(self, runs: Runs, twins: Twins) -> None:
        self.runs, self.twins = runs, twins
        self.exchange = Exchange(runs, twins)
        self.returned = runs.results()
        self.evidence: list[str] = []
        self.steps: list[Step] = []
        self.modules: tuple[ModuleMark, ...] = ()
        self.marks: tuple[Marks, Marks] | None = None
        self.steady = True
        self.time_first = False
        self.until: int | None = None
        self.passed: list[Key] = []
        self.reshaped: Step | None = None

    def run(self) -> Explanation:
        """The explanation, without what does not depend on the runs."""
        self._compare_modules()
        self._repeat()
        asked = self._asked()
        if asked is not None:
            self.until = asked.stage
        step = self._first_step()
        if asked is not None and step is None:
            return self._explanation(other_inputs(asked, self.runs.module), Place(""),
                                     _amount(*self._values(asked)), [])  # fmt: skip
        if step is None and self.returned.equal and self.steady:
            return self._equal()
        if step is None and not self.returned.equal and self.marks is not None:
            found = self._compiled()
            if found is not None:
                return found
        owner = _owner(step)
        pair, others = self._operations(owner, step)
        if pair is not None:
            return self._operation(pair, others, step)
        if step is None and not self.returned.apart and self.steady:
            return self._equal()
        return self._module(step, owner, others)

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
        asked = steps(first.inputs, second.inputs)
        return next((s for s in asked if s.differing or s.recast), None)

    def _counts(self, step: Step) -> bool:
        """Whether a step differs, before the runs ask different things (what was drawn, say)."""
        return step.differing > 0 and (self.until is None or step.stage < self.until)

    def _first_step(self) -> Step | None:
        """The first of the modules' steps in which the runs part.

        A result of another type alone is none: it may hold the same numbers, and the results agree.
        """
        if self.returned.equal and not any(map(self._counts, self.steps)):
            return None
        early = (s for s in self.steps if s.recast and (self.until is None or s.stage < self.until))
        recast = next(early, None)
        return next((s for s in self.steps if s is recast or self._counts(s)), None)

    def _equal(self) -> Explanation:
        """The answer where nothing differs, and how much of the runs it stands on.

        Raises:
            SettingError: it stands on nothing.
        """
        done, returned = sum(s.differs is not None for s in self.steps), self.returned
        if returned.omitted and not returned.count:
            raise SettingError(
                f"what the calls return cannot be compared: {', '.join(returned.omitted)}; return "
                "tensors, numbers or text, in lists, dicts or dataclasses"
            )
        if not done and not returned.count:
            raise SettingError(
                "nothing in the two runs could be compared: no module gave tensors of one "
                "shape in both, and neither did the calls; run the model in them, or align"
            )
        what = [f"{returned.count} returned values"] if returned.count else []
        if self.marks is not None:
            what.insert(0, f"{done} arguments and outputs of modules")
        rest = len(self.steps) - done
        others = f"; {rest} others have other shapes or types in both runs" if rest else ""
        lines = [f"{' and '.join(what)} were compared{others}."]
        if self.runs.module is not None and not self.runs.seen:
            lines.append("The model was not seen to run: what the calls returned was compared.")
        if returned.omitted:
            lines.append(f"Not compared: {', '.join(returned.omitted)}.")
        lines += [f"Not the request's alone, and not counted: {apart}" for apart in returned.unsure]
        return Explanation("equal", "", evidence=tuple(lines), modules=self.modules)

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

        An operation whose difference is lost on the way to the step (rounded away, or not used) is
        left out. One whose request was cut out at the wrong place is passed over.
        """
        self.passed = []
        found: dict[Key, Step] = {}
        agreed: set[Key] = set()
        partners = aligned(list(x.order), list(y.order))
        for s in steps(x.marks, y.marks, partners):
            if self._counts(s) or s.recast:
                found.setdefault(operation(s.key), s)
            elif s.differs is not None and not s.differing:
                agreed.add(operation(s.key))
            elif s.reshaped:
                self.reshaped = self.reshaped or s
        before = x.flow.before(self._ends(step), agreed - found.keys())
        if before is not None:
            taken_up = {key: s for key, s in found.items() if key in before}
            sure = step is not None or self.returned.apart or not self.steady
            matched = len(partners) == len(x.order) == len(y.order)
            found = taken_up or (found if sure and matched else {})
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

    def _ends(self, step: Step | None) -> list[Key]:
        """The steps that a cause must lead to: a module's, or what differs in the results."""
        if step is not None:
            return [step.key]
        module, name, count = RETURNED
        unsure = [a for a in self.returned.unsure if a.what == "bits"]
        return [(module, name + a.label, count) for a in (*self.returned.apart, *unsure)]

    def _capture(self, step: Step) -> tuple[Operation, Operation] | None:
        """Takes the operation out of both runs, in the forward that holds the differing token.

        None: it did not run again, as it may be with runs that do not repeat.
        """
        pair = []
        for side, mark, part in ((FIRST, step.first, step.key), (SECOND, step.second, step.there)):
            piece, place = mark.piece_of(step.token)
            op = self._taken(side, operation(part), piece)
            if op is None:
                return None
            op.twin = self.twins.get(op.func._schema.name)
            op.token = place if mark.axis >= 0 else 0
            op.alone = len(step.first.pieces[0]) != len(step.second.pieces[0])
            pair.append(op)
        return pair[0], pair[1]

    def _operation(
        self,
        pair: tuple[Operation, Operation],
        others: tuple[list[Key], list[Key]],
        step: Step | None,
    ) -> Explanation:
        """What is to be said when the operation is known."""
        first, second = pair
        case = Case(
            Isolation(first, second), others, self._given(first.key[0]),
            functools.cache(self._filled), functools.cache(lambda: self._values(step)), self.passed,
        )  # fmt: skip
        found = diagnose(case)
        self.evidence += _kernels(first, second)
        added = trees(case.isolation) if found.kind == "reordering" else ()
        if found.made_by is not None:
            return self._blamed(case, found)
        swaps = self.exchange.of(pair)
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
        first, second = (self._taken(side, key, 0) for side in (FIRST, SECOND))
        place = Place(key[0], key[1], module_kind=self._kind(key[0]))
        if first is not None and second is not None:
            place = replace(place, site=first.site, shapes=(first.shapes, second.shapes))
            self.evidence += _kernels(first, second)
            swaps = self.exchange.of((first, second))
        else:
            swaps = self.exchange.everything()
        amount = _amount(*case.isolation.want)
        return self._explanation(found, place, amount, swaps)

    def _module(
        self, step: Step | None, owner: str | None, others: tuple[list[Key], list[Key]]
    ) -> Explanation:
        """What is to be said when no operation that both runs have differs."""
        values, given = self._values(step), self._given(owner or "")
        place = Place(owner or "", module_kind=self._kind(owner or ""))
        settings = self._settings(owner or "")
        apart = self.returned.apart[0] if step is None and self.returned.apart else None
        keys = tuple(side[0] if side else None for side in others)
        if apart is not None and apart.what == "shape" and self.reshaped is not None:
            keys = operation(self.reshaped.key), operation(self.reshaped.there)
        ops = [None if key is None else self._taken(side, key, 0) for side, key in enumerate(keys)]
        there = [op for op in ops if op is not None]
        if len(there) == 2:
            settings = there[FIRST].settings, there[SECOND].settings
        if apart is None or apart.what == "bits":
            recast = step if step is not None and step.recast else None
            found = without_operation(values, others, given, settings, self.steady, recast)
            rest = sum(s.differs is None for s in self.steps)
            if found.kind == "unknown" and rest:
                self.evidence.append(
                    f"{rest} of {len(self.steps)} arguments and outputs of modules have other "
                    "shapes or numbers of tokens in both runs, and were not compared."
                )
        else:
            found = other_results(self.returned, given)
        if there:
            op = there[0]
            alike = [o.shapes if o is not None and o.func is op.func else () for o in ops]
            names = dict.fromkeys(key[1] for key in others[1]) if others[0] else ()
            place = Place(
                op.key[0], str(op.func), op.site, self._kind(op.key[0]), ", ".join(names) or None,
                (alike[FIRST], alike[SECOND]),
            )  # fmt: skip
        return self._explanation(found, place, _amount(*values), self.exchange.everything())

    def _taken(self, side: int, key: Key, forward: int) -> Operation | None:
        """An operation taken out of a forward of one run; None: it did not run again."""
        request = self._cut(self.runs.requests[side])
        capture = Capture(self.runs.module, request, {key: forward})
        self.runs.play(side, capture)
        return capture.found.get(key)

    def _values(self, step: Step | None) -> tuple[Bits, Bits]:
        """The results of a module step in both runs."""
        if step is None:
            return self.returned.values
        found = []
        for side in (FIRST, SECOND):
            tape = Value(self.runs.module, self.runs.requests[side], step.key)
            self.runs.play(side, tape)
            found.append(tape.joined())
        return found[0], found[1]

    def _compiled(self) -> Explanation | None:
        """Runs that agree step by step and differ as wholes: what is compiled, fused or timed."""
        torch_compiler: Any = torch.compiler
        with torch_compiler.set_stance("force_eager"):
            eager = self.runs.results((self.runs.plain(FIRST), self.runs.plain(SECOND)))
        if not eager.equal:
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
            trigger=found.trigger, place=place, amount=amount, factors=found.factors,
            evidence=(*self.evidence, *self.exchange.evidence, *found.evidence),
            swaps=tuple(swaps), modules=self.modules, trees=trees,
        )  # fmt: skip

    def _given(self, owner: str) -> list[tuple[str, str, str]]:
        """Arguments of a module that differ in form."""
        if self.marks is None:
            return []
        module = self.runs.module
        owned = None if module is None else dict(module.named_modules()).get(owner)
        x, y = (
            {k if isinstance(k, str) else parameter(owned, k): form for k, form in given.items()}
            for given in (m.given.get(owner, {}) for m in self.marks)
        )
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
        agree = not still_differing(x, y, self.runs)[0]
        return agree, sum(f.filled for f in found), sum(f.bad for f in found)


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


def _is_compiled(module: torch.nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
