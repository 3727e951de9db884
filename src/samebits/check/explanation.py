"""Why two runs differ, as one immutable value that goes to JSON and back."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from samebits.check.building import build

FORMAT = 1
Verdict = Literal["equal", "differs"]


@dataclass(frozen=True)
class Kind:
    """What a difference is: its title, what it means, and whether it may be."""

    title: str
    means: str
    allowed: bool


#: The kinds of causes. Only reordering is something that floating point allows.
KINDS: dict[str, Kind] = {
    "reordering": Kind(
        "reordering",
        "the same terms were added in another order or in other groups; each result is as good as "
        "the other",
        True,
    ),
    "precision": Kind(
        "lower precision", "one run computed with fewer bits than its inputs have", False
    ),
    "semantics": Kind(
        "semantics",
        "one run computed something else: another mask, scale, argument or state",
        False,
    ),
    "memory": Kind(
        "memory", "a result depends on memory that it must not read, or on a race", False
    ),
    "random": Kind("random numbers", "the runs drew different random numbers", False),
    "ties": Kind("ties", "equal values were ranked in another order", False),
    "scale": Kind(
        "batch-derived scale", "a number computed over the whole batch scales every request", False
    ),
    "configuration": Kind(
        "configuration", "a setting, or the switch, was not the same in both runs", False
    ),
    "inputs": Kind("different inputs", "the model was not asked the same in both runs", False),
    "version": Kind("library version", "the runs come from different versions of a library", False),
    "unknown": Kind("unknown", "no experiment found the cause", False),
}


@dataclass(frozen=True)
class Place:
    """The operation at which the bits part first.

    Attributes:
        module: path of the module that ran it ("" for the model or function itself).
        op: the operation, e.g. ``aten.mm.default``; None when only the module is known.
        site: ``file:line`` of the caller.
        module_kind: class of the module.
        other_op: what ran in its place in the second run, where that was another operation.
        shapes: shapes of its operands, in the first and in the second run.
    """

    module: str
    op: str | None = None
    site: str | None = None
    module_kind: str = ""
    other_op: str | None = None
    shapes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class Amount:
    """How much of the operation's result differs, for the request.

    Attributes:
        differing, elements: of the first run's elements, in bits.
        max_ulp: largest distance of two finite elements, in units in the last place.
        nonfinite: differing elements of which one or both are NaN or infinite.
        of_bound: the largest error of each run against the exact result, as a share of the bound
            that every order of summation keeps; None where no bound is known.
    """

    differing: int
    elements: int
    max_ulp: int
    nonfinite: int = 0
    of_bound: tuple[float, float] | None = None


@dataclass(frozen=True)
class Factor:
    """The operation run by itself with one thing changed.

    Attributes:
        name: what was changed: ``rows``, ``neighbours``, ``layout``, ``threads``, ...
        change: how.
        outcome: whose bits came out: ``first`` run's, ``second`` run's, ``both`` (they agree),
            ``other`` bits, or ``failed``.
        note: what else was seen.
    """

    name: str
    change: str
    outcome: Literal["first", "second", "both", "other", "failed"]
    note: str = ""


@dataclass(frozen=True)
class Swap:
    """Both runs repeated with some operations computed under their contracts.

    Attributes:
        what: the operation at the place alone, all of its name, or everything.
        replaced: calls replaced in the two runs together.
        differing: module outputs that still differ.
        first: the first of them, or None.
    """

    what: str
    replaced: int
    differing: int
    first: str | None


@dataclass(frozen=True)
class ModuleMark:
    """A module's output: how many of the request's tokens differ."""

    name: str
    kind: str
    differing: int
    elements: int


@dataclass(frozen=True)
class Explanation:
    """Where two runs part, why, how much, and whether they may.

    Attributes:
        verdict: ``equal``, or ``differs``.
        target: what was run.
        kind: a key of `KINDS`, or None when the runs are equal.
        cause: the cause in one sentence.
        detail: a word for programs: ``tf32``, ``mask``, ``uninitialised``, ``atomic``, ...
        trigger: the factor that makes the difference come and go, or None.
        place, amount: where and how much.
        evidence: what was seen, a sentence each.
        factors: the experiments with the operation by itself.
        swaps: the experiments with contract twins.
        modules: every compared module output in order of execution.
        trees: how the operation added in the two runs, where that could be probed.
        rest: after a reordering: what still parts the runs with the switch on, where no order
            does; None where nothing was seen to.
        passes: forward passes of the model that it took.
        environment: versions and machine.
    """

    verdict: Verdict
    target: str
    kind: str | None = None
    cause: str = ""
    detail: str = ""
    trigger: str | None = None
    place: Place | None = None
    amount: Amount | None = None
    evidence: tuple[str, ...] = ()
    factors: tuple[Factor, ...] = ()
    swaps: tuple[Swap, ...] = ()
    modules: tuple[ModuleMark, ...] = ()
    trees: tuple[str, ...] = ()
    rest: Explanation | None = None
    passes: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def allowed(self) -> bool:
        """Whether floating point lets the runs differ: they are equal, or were only reordered."""
        here = self.kind is None or KINDS[self.kind].allowed
        return here and (self.rest is None or self.rest.allowed)

    @property
    def verdict_line(self) -> str:
        """The answer in one line."""
        if self.kind is None:
            return f"{self.target}: equal, every bit of every module"
        where = self.place
        op = (where.op or "").removesuffix(".default") if where else ""
        place = " in ".join(filter(None, (op, where.module if where else "")))
        return f"{self.target}: {KINDS[self.kind].title} at {place or 'the model itself'}"

    @property
    def should(self) -> str:
        """Whether the runs may differ, and what to do."""
        if self.kind is None:
            return "They agree, as they should."
        if KINDS[self.kind].allowed:
            return f"Stock PyTorch promises no order, so this is not a defect{self._behind}"
        if self.kind == "inputs":
            return (
                "This says nothing about the model: give both runs the same request, or say with "
                "`align` which rows and tokens belong together."
            )
        return "They should not differ: this is a defect or a setting, not rounding."

    @property
    def _behind(self) -> str:
        """What is known of the runs without this reordering."""
        if self.rest is not None:
            found = self.rest.verdict_line.removeprefix(f"{self.rest.target}: ")
            if self.rest.allowed:
                return f"; the switch does not change it: {found}. {self.rest.cause}"
            return (
                f". But it hides another difference, which is left with the switch on: {found}. "
                + (f"{self.rest.cause} {self.rest.should}")
            )
        if any(not swap.differing for swap in self.swaps):
            return (
                "; under samebits.enable() the order is part of the contract and the bits are "
                "equal."
            )
        return ". Whether the runs agree without it could not be tried."

    def to_json(self, *, indent: int | None = 1) -> str:
        """The explanation as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Explanation:
        """The explanation that `to_json` wrote.

        Raises:
            ValueError: the text is not one, or one of another format.
        """
        data: Any = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT or "verdict" not in data:
            raise ValueError("not a samebits explanation of this version")
        return build(cls, data)

    def __str__(self) -> str:
        lines = [self.verdict_line]
        if self.cause:
            lines.append(f"  {self.cause}")
        lines += [f"  {line}" for line in self.evidence]
        lines.append(f"  {self.should}")
        return "\n".join(lines)
