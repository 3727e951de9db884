"""Runs the tests of a subject on stock torch and with the switch on, and makes the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

import torch

from samebits.check import cause
from samebits.check.adapters import subject_of
from samebits.check.cause.versions import digests
from samebits.check.compare import Bits, Difference, add, difference
from samebits.check.environment import environment
from samebits.check.explanation import Explanation
from samebits.check.promises import select
from samebits.check.result import Case, Divergence, Outcome, Report, Speed, Test, Text
from samebits.check.speed import speed_of, texts_of
from samebits.check.subject import NotApplicable, NotRowwise, Probe, Subject
from samebits.check.timing import Switch
from samebits.check.trace import first_divergence
from samebits.errors import DeviceError
from samebits.mode import deterministic, stock

Side = Literal["stock", "switched"]
SIDES: dict[Side, str] = {"stock": "stock torch", "switched": "samebits"}


@dataclass(frozen=True)
class Progress:
    """How far a check is: `done` of `total` steps, and what is being done."""

    done: int
    total: int
    what: str


def check(
    target: Any,
    inputs: Any = None,
    *,
    promises: Iterable[str] | None = None,
    seed: int = 0,
    name: str | None = None,
    costs: bool = True,
    explain: bool = False,
    switch: Switch = deterministic,
    progress: Callable[[Progress], None] | None = None,
    **how: Any,
) -> Report:
    """Tests, promise by promise, whether a request keeps its bits: on stock torch, then switched.

    Every element of every result is compared, as bits. Nothing is assumed about stock torch.

    Args:
        target: a function of tensors, an ``nn.Module``, a Hugging Face causal model or encoder, the
            bundled model, or an object with the methods of `samebits.check.tokens.Decoder`.
        inputs: arguments of the function or module (a tensor or a sequence); the first tensor's
            axis 0 is the batch unless ``batched=(True, False, ...)`` says otherwise. For language
            models token ids, optional.
        promises: names of promises or tests to run (default: all); see `samebits.check.promises`.
        seed: of generated inputs.
        name: the target's name in the report.
        costs: also measure times, and generate text alone and in company.
        explain: also find out why bits differ, for the first case of each test that does.
        switch: context manager factory to check instead of `samebits.deterministic`.
        progress: called before every step.
        how: keywords of the subject: ``batched``, ``sweep``, ``sizes``.

    Returns:
        The report; ``report.holds``, ``report.exit_status``.

    Raises:
        SettingError: an unknown promise, a target that cannot be called, or one without inputs.
        DeviceError: a kernel, stock torch's or ours, has faulted, and the process lost the GPU.
        ShapeError: the target does not work row by row.
    """
    started = time.perf_counter()
    tests = select(promises)
    subject = subject_of(target, inputs, name=name, seed=seed, **how)
    tell = _Teller(progress, 2 * len(tests) + (2 if costs else 0))
    results = []
    for test in tests:
        try:
            probes = list(subject.probes(test))
        except NotApplicable as reason:
            tell.skip(2)
            results.append(Test(test, skipped=str(reason)))
            continue
        with stock():
            before = _outcome(subject, test, probes, tell, "stock", explain)
        with switch():
            after = _outcome(subject, test, probes, tell, "switched", explain)
        results.append(Test(test, before, after))
    speed: tuple[Speed, ...] = ()
    texts: tuple[Text, ...] = ()
    if costs and all(t.switched is None or t.switched.error is None for t in results):
        tell("times")
        speed = tuple(speed_of(subject, switch))
        tell("text, alone and in company")
        texts = tuple(texts_of(subject, switch))
    return Report(
        target=subject.name,
        kind=subject.kind,
        environment=environment(subject.device) | subject.describe(),
        tests=tuple(results),
        speed=speed,
        texts=texts,
        digests=tuple(digests(subject, switch)),
        seconds=time.perf_counter() - started,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


class _Teller:
    """Counts steps for the progress callback."""

    def __init__(self, progress: Callable[[Progress], None] | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, what: str) -> None:
        if self._progress is not None:
            self._progress(Progress(self._done, self._total, what))
        self._done += 1

    def skip(self, steps: int) -> None:
        self._done += steps


def _outcome(
    subject: Subject, test: str, probes: Sequence[Probe], tell: _Teller, side: Side, explain: bool
) -> Outcome:
    """Runs all probes of a test on one side; traces the first that differs."""
    tell(f"{test}, {'stock torch' if side == 'stock' else 'switch on'}")
    started = time.perf_counter()
    known: dict[int, Sequence[Bits]] = {}
    cases: list[Case] = []
    divergence: Divergence | None = None
    explanation: Explanation | None = None
    for probe in probes:
        if side == "stock" and not probe.stock:
            continue
        try:
            case, found = _case(probe, known)
            if found and divergence is None:
                divergence = _trace(subject, probe, *found)
                explanation = _explain(subject, probe, found[0]) if explain else None
        except NotRowwise:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            if subject.device.type == "cuda" and not _usable(subject.device):
                raise DeviceError(
                    f"{test}, {probe.label}: a kernel of {SIDES[side]} has faulted ({message}). "
                    "This process has lost the GPU with it, so nothing else can be tested: start "
                    f"again and leave {test!r} out of promises="
                ) from error
            case = Case(probe.label, probe.x, probe.group, error=message)
        cases.append(case)
    return Outcome(tuple(cases), time.perf_counter() - started, divergence, explanation)


def _usable(device: torch.device) -> bool:
    """Whether the process still has its GPU: after a kernel has faulted, every call fails."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def _case(
    probe: Probe, known: dict[int, Sequence[Bits]]
) -> tuple[Case, tuple[int, Bits, Bits] | None]:
    """Compares one probe; also the first request that differs, with both its results."""
    for call, _ in probe.expected:
        if id(call) not in known:
            known[id(call)] = call()
    results = probe.call()
    found: tuple[int, Bits, Bits] | None = None
    parts: list[Difference] = []
    for index, (call, row) in enumerate(probe.expected):
        reference, result = known[id(call)][row], results[probe.place(index)]
        parts.append(difference(reference, result))
        if parts[-1].differing and found is None:
            found = (index, reference, result)
    total = add(parts)
    case = Case(
        probe.label,
        probe.x,
        probe.group,
        total.elements,
        tuple(part.differing for part in parts),
        total.max_ulp,
        total.ulps,
        total.nonfinite,
    )
    return case, found


def _explain(subject: Subject, probe: Probe, index: int) -> Explanation:
    call, row = probe.expected[index]
    place = probe.place(index)
    return cause.explain(
        subject.module,
        lambda: call()[row],
        lambda: probe.call()[place],
        align=(row, place),
        name=f"{subject.name}, {probe.label}",
    )


def _trace(subject: Subject, probe: Probe, index: int, reference: Bits, result: Bits) -> Divergence:
    call, row = probe.expected[index]
    place = probe.place(index)
    return first_divergence(
        subject.module,
        probe.label,
        lambda: call()[row],
        lambda: probe.call()[place],
        row,
        place,
        (reference, result),
    )
