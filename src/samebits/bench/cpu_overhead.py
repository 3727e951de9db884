"""What samebits costs where it does nothing: importing it, and small calls with the switch off/on.

Each line comes from fresh processes, because a process that has had the switch on is not the stock
one any more; that is what is measured.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from statistics import median

from samebits.bench.timing import Row

PROCESSES = 3

_IMPORT = (
    "import time, torch; t = time.perf_counter(); import samebits; print(time.perf_counter() - t)"
)

# Operations of 16 numbers: one that no override touches, one exact one, one that is overridden.
_CALLS = {
    "clone": "x.clone()",
    "relu": "torch.relu(x)",
    "sum": "x.sum()",
}
_CALL = """
import time, torch
from statistics import median
x = torch.ones(16)
def seconds():
    times = []
    for _ in range(9):
        t = time.perf_counter()
        for _ in range(2000):
            {call}
        times.append((time.perf_counter() - t) / 2000)
    return median(times)
seconds()
before = seconds()
import samebits
samebits.enable()
{state}
print(before, seconds())
"""


def rows() -> Iterator[Row]:
    """Import time, then the same small call in stock torch, behind an idle switch, and switched."""
    yield Row(
        "import",
        "samebits, after torch and numpy",
        None,
        median(run[0] for run in _runs(_IMPORT)),
        None,
    )
    for state, code in (("off again", "samebits.disable()"), ("on", "")):
        for name, call in _CALLS.items():
            found = _runs(_CALL.format(call=call, state=code))
            before, after = (median(times) for times in zip(*found, strict=True))
            yield Row("one call", f"{name} of 16 numbers, switch {state}", before, after)


def _runs(code: str) -> list[list[float]]:
    """The numbers that each of several processes prints."""
    found = []
    for _ in range(PROCESSES):
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        found.append([float(word) for word in run.stdout.split()])
    return found
