"""Both runs again with operations computed under their contracts: the proof of a cause."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from samebits.check.cause.capture import Operation
from samebits.check.cause.marks import Marks, Request, steps
from samebits.check.cause.runs import Runs
from samebits.check.cause.twins import NoTwinError, Swap, Twins, twin
from samebits.check.explanation import Swap as SwapResult
from samebits.check.tape import Key
from samebits.errors import UncoveredError
from samebits.mode import deterministic, is_on

#: How the exchange of all operations is called.
EVERYTHING = "everything (the switch)"


class Exchange:
    """Exchanges operations for their twins.

    Args:
        runs: the two runs.
        twins: of operations that are not torch's.

    Attributes:
        evidence: why something could not be exchanged, a sentence each.
    """

    def __init__(self, runs: Runs, twins: Twins) -> None:
        self.runs, self.twins = runs, twins
        self.evidence: list[str] = []

    def of(self, pair: tuple[Operation, Operation]) -> list[SwapResult]:
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
        if not found or found[-1].differing:
            found.extend(self.everything())
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
        return SwapResult(what, sum(s.replaced for s in made), *still_differing(x, y, self.runs))

    def everything(self) -> list[SwapResult]:
        """Both runs with the switch on; nothing where it is on already, or does not cover them."""
        module = self.runs.module
        if is_on():
            return []
        try:
            with deterministic():
                x, y = self.runs.both(lambda r, like: Marks(module, r, like=like))
        except UncoveredError as error:
            self.evidence.append(f"With the switch on it does not run: {error}")
            return []
        return [SwapResult(EVERYTHING, 0, *still_differing(x, y, self.runs))]


def still_differing(x: Marks, y: Marks, runs: Runs) -> tuple[int, str | None]:
    """How many modules' outputs differ, and the first; if none does, whether the results do."""
    names = [s.key[0] or "(whole)" for s in steps(x.outputs, y.outputs) if s.differing]
    if not names and not runs.results(runs.last).equal:
        names = ["(result)"]
    return len(names), names[0] if names else None
