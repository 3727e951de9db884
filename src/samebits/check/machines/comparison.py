"""Two records, case by case: equal, explained by their contracts, or a defect of one machine.

Where bits differ the contracts are evaluated here, on a CPU: every result of a case, so that a
digest decides, not a sample. So a difference between two machines is not a matter of tolerance: a
machine either has the bits of its contract, or it does not, and it is said which one does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from samebits import bits
from samebits.check.machines.cases import DTYPES, Case, cases
from samebits.check.machines.record import Entry, Record, digest
from samebits.contract import Contract, parse
from samebits.contract.exact.contract import ExactContract
from samebits.contract.intervals.interval import Interval
from samebits.errors import ContractError, SamebitsError, SettingError

Verdict = Literal["equal", "explained", "defect", "missing"]


@dataclass(frozen=True)
class Line:
    """One case of two machines.

    Attributes:
        name: of the case.
        verdict: "equal": the same bits. "explained": other bits, because the contracts are
            different ones, and each machine has the bits of its own. "defect": a machine does not
            have the bits of its contract. "missing": one machine has no result.
        why: one sentence.
        apart: the largest difference between two sampled results, where results were compared.
        allowed: what the certified intervals of both contracts allow at that place; of sums that
            are exact nothing is certified beyond their value.
    """

    name: str
    verdict: Verdict
    why: str
    apart: float | None = None
    allowed: float | None = None


@dataclass(frozen=True)
class Comparison:
    """All cases.

    Attributes:
        first, second: what the machines are.
        lines: a line a case.
    """

    first: str
    second: str
    lines: tuple[Line, ...] = field(default=())

    @property
    def exit_status(self) -> int:
        """1 if there is a defect or nothing was compared, else 0."""
        found = {line.verdict for line in self.lines}
        return int("defect" in found or not found & {"equal", "explained"})

    def count(self, verdict: Verdict) -> int:
        """How many cases have this verdict."""
        return sum(line.verdict == verdict for line in self.lines)


def compare(first: Record, second: Record) -> Comparison:
    """What two records say together.

    Raises:
        SettingError: they have no case in common, or a contract in them cannot be read.
    """
    theirs = {e.name: e for e in second.entries}
    known = {c.name: c for name in (first.family, second.family) for c in cases(name)}
    if not any(e.name in theirs for e in first.entries):
        raise SettingError("the records have no case in common")
    lines = []
    for entry in first.entries:
        other = theirs.pop(entry.name, None)
        if other is None:
            lines.append(Line(entry.name, "missing", "only the first machine has it"))
        else:
            lines.append(_line(entry, other, known.get(entry.name)))
    lines += [Line(name, "missing", "only the second machine has it") for name in theirs]
    return Comparison(_named(first), _named(second), tuple(lines))


def _named(record: Record) -> str:
    about = record.environment
    chip = about.get("device") or about.get("processor") or record.device_class
    return f"{chip}, {record.device_class}, {record.family} contracts"


def _line(a: Entry, b: Entry, case: Case | None) -> Line:
    if a.refused or b.refused:
        which = "both machines" if a.refused and b.refused else f"the {_ordinal(bool(b.refused))}"
        return Line(a.name, "missing", f"refused by {which}: {a.refused or b.refused}")
    if a.shape != b.shape or len(a.sample) != len(b.sample):
        return Line(a.name, "defect", f"results of shapes {a.shape} and {b.shape}")
    if a.digest == b.digest:
        return Line(a.name, "equal", "the same bits")
    contracts = _contract(a), _contract(b)
    if case is None or contracts[0] is None or contracts[1] is None:
        if a.contract == b.contract:
            return Line(a.name, "defect", "one arithmetic, different bits")
        raise SettingError(f"{a.name}: this release cannot evaluate it, use that of the records")
    return _different(a, b, case, (contracts[0], contracts[1]))


def _contract(entry: Entry) -> Contract | None:
    try:
        return parse(entry.contract) if entry.contract else None
    except ContractError as error:
        raise SettingError(f"{entry.name}: {error}") from None


def _different(a: Entry, b: Entry, case: Case, contracts: tuple[Contract, Contract]) -> Line:
    """Two results with different bits, held to their contracts."""
    wrong, right = [], [_right(a, case, contract) for contract in contracts]
    for i, entry in enumerate((a, b)):
        if problem := _problem(entry, case, contracts[i], right[i]):
            wrong.append(f"the {_ordinal(i == 1)} {problem}")
    x, y = _values(a, case), _values(b, case)
    apart = np.abs(x - y)
    worst = int(np.nanargmax(np.where(np.isfinite(apart), apart, -1)))
    distance = float(apart[worst]), _allowed(case, contracts, worst)
    if wrong:
        return Line(a.name, "defect", "; ".join(wrong), *distance)
    return Line(a.name, "explained", f"{_what(*contracts)}; each has its own bits", *distance)


def _allowed(case: Case, contracts: tuple[Contract, Contract], worst: int) -> float | None:
    """The sum of both intervals' widths at sampled result `worst`."""
    if any(isinstance(contract, ExactContract) for contract in contracts):
        return None
    intervals = (case.interval(contract, "contract") for contract in contracts)
    return float(sum(interval.width.flatten()[worst] for interval in intervals))


def _right(entry: Entry, case: Case, contract: Contract) -> torch.Tensor:
    """What a contract gives."""
    try:
        return case.evaluated(contract)
    except (TypeError, SamebitsError) as error:
        raise SettingError(f"{entry.name}: its contract is another operation's: {error}") from None


def _problem(entry: Entry, case: Case, contract: Contract, right: torch.Tensor) -> str:
    """What is wrong with a machine's result, or ""."""
    expected = bits.view(case.sampled(right)).flatten().numpy()
    found = _words(entry, case)
    if len(found) != len(expected):
        raise SettingError(
            f"{entry.name}: {len(found)} sampled results, where this release has {len(expected)}: "
            "use that of the records"
        )
    departs = np.flatnonzero(expected != found)
    if not len(departs):
        same = digest(right) == entry.digest
        return "" if same else "does not have its contract's bits (no sampled result shows it)"
    within = _interval(case, contract, right, "any")
    values = _values(entry, case).reshape(within.first.shape)
    inside = (within.low <= values) & (values <= within.high)
    outside = departs[~inside.flatten()[departs]]
    if len(outside):
        return f"is outside what any order of additions gives ({len(outside)} of {len(found)})"
    return f"does not have its contract's bits ({len(departs)} of {len(found)} sampled)"


def _interval(case: Case, contract: Contract, right: torch.Tensor, order: str) -> Interval:
    """Between which numbers results lie: sums that are exact have one value in every order."""
    if not isinstance(contract, ExactContract):
        return case.interval(contract, order)
    value = case.sampled(right).double().numpy()
    return Interval(value, value, value, value)


def _words(entry: Entry, case: Case) -> np.ndarray[tuple[int, ...], np.dtype[np.signedinteger]]:
    small = case.dtype != "fp32"
    unsigned = np.array(entry.sample, np.uint32).astype(np.uint16 if small else np.uint32)
    return unsigned.view(np.int16 if small else np.int32)


def _values(entry: Entry, case: Case) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    words = torch.from_numpy(_words(entry, case).copy())
    return np.asarray(words.view(DTYPES[case.dtype]).double().numpy())


def _what(a: Contract, b: Contract) -> str:
    """Where two contracts part."""
    return ", ".join(_parts(a, b)) or "other contracts"


def _parts(a: Contract, b: Contract) -> Iterator[str]:
    if isinstance(a, ExactContract) != isinstance(b, ExactContract):
        yield f"{_sums(a)} against {_sums(b)}"
        return
    mine, theirs = _lines(a), _lines(b)
    for name, value in mine.items():
        if name in theirs and value != theirs[name]:
            yield f"{name} {value} against {theirs[name]}"


def _lines(contract: Contract) -> dict[str, str]:
    parts = (line.partition(": ") for line in contract.text.splitlines())
    return {name: value for name, colon, value in parts if colon}


def _sums(contract: Contract) -> str:
    """How a contract adds: exactly, or in which order."""
    lines = _lines(contract)
    if isinstance(contract, ExactContract):
        return f"exact {lines['formula']}"
    return next((f"{name} {lines[name]}" for name in ("tree", "leaf") if name in lines), "an order")


def _ordinal(second: bool) -> str:
    return "second machine" if second else "first machine"
