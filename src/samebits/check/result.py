"""What a check found, as one immutable value that goes to JSON and back.

`Report` holds one `Test` for each way in which bits could change; a test holds an `Outcome` for
stock torch and one for the switch; an outcome holds one `Case` for each call that was compared.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Literal

from samebits.check.building import build
from samebits.check.explanation import Explanation
from samebits.check.promises import PROMISES, TESTS

FORMAT = 1
Verdict = Literal["same", "differs", "error"]


@dataclass(frozen=True)
class Case:
    """One call compared with its reference, over all elements of all requests in it.

    Attributes:
        label: what was varied, e.g. ``M = 17``.
        x: the value of what was varied where it is a number (M, threads, pad length, chunk).
        group: cases of one picture belong together, e.g. ``prefill`` and ``decode``.
        elements: how many elements were compared.
        rows: for each request of the call, how many of its elements differ in any bit.
        max_ulp: the largest distance between two finite elements, in units in the last place.
        ulps: how many elements differ by 1, 2, 3-4, 5-8, ... units (entry i: up to 2**i).
        nonfinite: differing elements of which one or both are NaN or infinite.
        error: why the call failed, in which case the other numbers are zero.
    """

    label: str
    x: int | None = None
    group: str = ""
    elements: int = 0
    rows: tuple[int, ...] = ()
    max_ulp: int = 0
    ulps: tuple[int, ...] = ()
    nonfinite: int = 0
    error: str | None = None

    @property
    def differing(self) -> int:
        """Elements that differ in any bit."""
        return sum(self.rows)

    @property
    def differing_rows(self) -> int:
        """Requests with at least one differing element."""
        return sum(count > 0 for count in self.rows)


@dataclass(frozen=True)
class Layer:
    """A module's output for one request: how much of it differs."""

    name: str
    kind: str
    differing: int
    elements: int


@dataclass(frozen=True)
class Noise:
    """Whether a difference is what another order of summation gives, over a sample of elements.

    Histograms count differences by size, in units of the results' root mean square: first zeros,
    then octaves (see `samebits.check.noise.histogram`).

    Attributes:
        op: the operation.
        verdict: ``reordering``: both results are inside the interval that every order of summation
            keeps (docs/intervals.md); ``defect``: one is outside, so it is something else;
            ``suspect``: inside, but far beyond what other orders give, as lower precision is.
        elements: elements in the sample.
        outside: of them outside the interval.
        times: the largest difference as a multiple of the largest between the contract's results
            along other orders (or of the output's unit in the last place, if that is larger).
        reach: median width of the interval, in the same units as the histograms.
        predicted: differences between other orders.
        stock: differences between the two results on stock torch.
        switched: the same with the switch on; None where no contract covers the operation.
    """

    op: str
    verdict: Literal["reordering", "suspect", "defect"]
    elements: int
    outside: int
    times: float
    reach: float
    predicted: tuple[int, ...]
    stock: tuple[int, ...]
    switched: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Divergence:
    """Where the bits of one request part for the first time, found by running both calls again.

    Attributes:
        case: label of the case that was traced.
        module: first module in order of execution whose output differs, or None.
        op: first aten operation whose output differs, or None when it could not be told.
        op_module: the module that called it.
        reference_shapes: shapes of the operation's tensor arguments in the reference call.
        shapes: the same in the call that differs.
        differing: elements of the operation's output (this request's) that differ.
        elements: elements compared there.
        max_ulp: largest distance there.
        layers: every module in order of execution.
        faithful: the traced runs gave the bits of the plain runs.
        noise: what of it other orders of summation explain; None where no contract says.
    """

    case: str
    module: str | None
    op: str | None
    op_module: str | None
    reference_shapes: tuple[str, ...]
    shapes: tuple[str, ...]
    differing: int
    elements: int
    max_ulp: int
    layers: tuple[Layer, ...]
    faithful: bool
    noise: Noise | None = None


@dataclass(frozen=True)
class Outcome:
    """One test on stock torch or with the switch on; `explanation` only where it was asked for."""

    cases: tuple[Case, ...]
    seconds: float
    divergence: Divergence | None = None
    explanation: Explanation | None = None

    @property
    def verdict(self) -> Verdict:
        """``error`` when a call failed, ``differs`` when any bit did, else ``same``."""
        if any(case.differing for case in self.cases):
            return "differs"
        return "error" if any(case.error for case in self.cases) else "same"

    @property
    def error(self) -> str | None:
        """The first error of the test."""
        return next((case.error for case in self.cases if case.error), None)

    @property
    def worst(self) -> Case:
        """The case with the largest share of differing elements."""
        return max(self.cases, key=lambda case: case.differing / max(case.elements, 1))


@dataclass(frozen=True)
class Test:
    """One way in which bits could change. `skipped` says why it does not apply to the target."""

    __test__ = False

    name: str
    stock: Outcome | None = None
    switched: Outcome | None = None
    skipped: str | None = None

    @property
    def promise(self) -> str:
        """The promise that it tests."""
        return TESTS[self.name].promise

    @property
    def title(self) -> str:
        """Its name for people."""
        return TESTS[self.name].title


@dataclass(frozen=True)
class Speed:
    """A cost: seconds of one unit of work on stock torch and with the switch on."""

    label: str
    unit: str
    stock: float
    switched: float

    @property
    def ratio(self) -> float:
        """How many times as fast as stock."""
        return self.stock / self.switched


@dataclass(frozen=True)
class Text:
    """One prompt continued greedily, alone and in a batch with others.

    Attributes:
        side: ``stock`` or ``switched``.
        prompt: the prompt.
        company: how many other prompts were in the batch.
        alone: the continuation when it is alone in the batch.
        together: its continuation in company.
        steps: how many tokens were generated.
        differing_steps: at how many of them the logits differ in any bit.
        first_logits: the first such step, or None.
        first_token: the first step that chose another token, or None.
    """

    side: str
    prompt: str
    company: int
    alone: str
    together: str
    steps: int
    differing_steps: int
    first_logits: int | None
    first_token: int | None


@dataclass(frozen=True)
class Digest:
    """A hash of the bits of one module's output, on one side (``stock`` or ``switched``)."""

    side: str
    name: str
    kind: str
    value: str


@dataclass(frozen=True)
class Report:
    """All that a check found.

    Attributes:
        target: what was checked.
        kind: ``function``, ``module``, ``causal language model`` or ``encoder``.
        environment: versions, processor, threads, settings.
        tests: one for each way in which bits could change.
        speed: costs of the switch.
        texts: text generated alone and in company (language models).
        digests: of the outputs of all modules for one call, to compare saved reports by.
        seconds: how long the check took.
        created: UTC time, ISO 8601.
    """

    target: str
    kind: str
    environment: dict[str, str]
    tests: tuple[Test, ...]
    speed: tuple[Speed, ...] = ()
    texts: tuple[Text, ...] = ()
    digests: tuple[Digest, ...] = ()
    seconds: float = 0.0
    created: str = ""
    format: int = field(default=FORMAT)

    @property
    def holds(self) -> bool:
        """True when every test that applies gave the same bits with the switch on."""
        ran = [test.switched for test in self.tests if test.switched is not None]
        return bool(ran) and all(outcome.verdict == "same" for outcome in ran)

    @property
    def exit_status(self) -> int:
        """0 all promises hold with the switch on, 1 one is broken, 2 one could not be tested."""
        verdicts = {test.switched.verdict for test in self.tests if test.switched is not None}
        if "differs" in verdicts:
            return 1
        return 0 if verdicts == {"same"} else 2

    def verdict(self, promise: str, side: Literal["stock", "switched"]) -> Verdict | None:
        """The verdict of one promise on one side, None when no test of it applies."""
        outcomes = [getattr(test, side) for test in self.tests if test.promise == promise]
        verdicts = {outcome.verdict for outcome in outcomes if outcome is not None}
        order: tuple[Verdict, ...] = ("differs", "error", "same")
        return next((verdict for verdict in order if verdict in verdicts), None)

    def to_json(self, *, indent: int | None = 1) -> str:
        """The report as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that `to_json` wrote.

        Raises:
            ValueError: the text is not a report, or one of another format.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError("not a samebits report of this version")
        return build(cls, data)

    def __str__(self) -> str:
        lines = [f"{self.target} ({self.kind}): {'holds' if self.holds else 'does not hold'}"]
        for promise in PROMISES:
            stock, switched = self.verdict(promise, "stock"), self.verdict(promise, "switched")
            if stock or switched:
                lines.append(f"  {promise}: stock {stock}, samebits {switched}")
        return "\n".join(lines)
