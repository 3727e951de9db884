"""What the guard has to say: events and counts, and a bus in the process that carries them.

Whoever writes a log, a metric or a receipt subscribes; the guard knows none of them. Events are
rare (a mismatch), counts are not (every call), so events are pushed and counts are read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from samebits.engines.cpu import _cpu
from samebits.guard.devices import Device

_log = logging.getLogger("samebits.guard")

Kind = Literal["path", "bytes", "cache"]
"""What failed: a reduction path or the sums of its partials; a comparison of bytes; sums of keys
and values that were written earlier."""

Verdict = Literal["transient", "schedule", "reference", "path", "undecided", "late"]
"""What the majority of three says.

transient: the call's own result was wrong, and is right when its schedule runs again.
schedule: it is wrong again.
reference: it was right, and what it was compared with is wrong.
path: all three agree, so the wrong path had the right bytes.
undecided: no two agree.
late: seen when the result had gone.
"""


class Operand(msgspec.Struct, frozen=True):
    """A tensor of a call, by reference: enough to recognise it in a dump or on another machine.

    Attributes:
        name: of the argument.
        shape, strides: in elements.
        dtype: e.g. "bfloat16".
        checksum: the sum of its integer view, modulo 2**64; the order of elements is not in it.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    checksum: int


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the guard caught, with what is needed to reproduce it.

    Attributes:
        time: Unix time in seconds.
        kind: what failed.
        op: the operation, e.g. "linear".
        contract: id of the contract.
        plan: id of the plan in force on the device class, "" where there is none.
        device: which one, its clocks and temperature at the time.
        site: ``file:line`` of the caller, or None.
        schedule: what ran.
        reference: what it was compared with, or was replayed with.
        operands: the call's tensors; the first `len(operands)` entries of the dump.
        options: the call's other arguments, as text.
        dump: file that holds the operands and both results, or None (see ``dumps``).
        detail: what differs: how many elements, the first one, both patterns; or which tiles.
        verdict: whom the majority believes.
        replaced: whether the result that went on is the reference's.
        seconds: time that checking and replaying this call took.
    """

    time: float
    kind: Kind
    op: str
    contract: str
    plan: str
    device: Device
    site: str | None
    schedule: str
    reference: str
    operands: tuple[Operand, ...] = ()
    options: str = ""
    dump: str | None = None
    detail: str = ""
    verdict: Verdict = "undecided"
    replaced: bool = False
    seconds: float = 0.0

    def __str__(self) -> str:
        what = {"path": "reduction path", "bytes": "bytes", "cache": "cache"}[self.kind]
        did = "replaced" if self.replaced else "not replaced"
        return (
            f"{self.op} at {self.site or '?'} on {self.device}: {what} of {self.schedule} differ "
            f"from {self.reference} ({self.detail}); {self.verdict}, result {did}"
        )


class Counts(msgspec.Struct):
    """What the guard has done in this process. Read `counts` at any time, from any thread.

    With several threads a few increments may be lost: these are figures, not evidence.

    Attributes:
        samples: calls that were executed again.
        cache_checks: sums of keys and values that were compared.
        mismatches: calls that failed a check.
        replays: executions to decide a mismatch.
        seconds: time spent on samples and replays.
    """

    samples: int = 0
    cache_checks: int = 0
    mismatches: int = 0
    replays: int = 0
    seconds: float = 0.0

    @property
    def calls(self) -> int:
        """Calls seen by the guard."""
        return _cpu.guard_counts()[0]

    @property
    def path_checks(self) -> int:
        """Calls whose paths were compared."""
        return _cpu.guard_counts()[1]

    @property
    def unchecked(self) -> int:
        """Calls in path mode whose kernel writes no path, such as a vendor's."""
        return _cpu.guard_counts()[2]


#: Of this process; only ever grows.
counts = Counts()

Subscriber = Callable[[Event], None]

_lock = threading.Lock()
_subscribers: list[Subscriber] = []


def subscribe(fn: Subscriber) -> Callable[[], None]:
    """Calls `fn(event)` for every event from now on, in the thread that met it.

    An exception in `fn` is logged and goes no further: a broken log must not break a request.

    Returns:
        A function that ends the subscription. Calling it twice is harmless.
    """
    with _lock:
        _subscribers.append(fn)

    def unsubscribe() -> None:
        with _lock:
            if fn in _subscribers:
                _subscribers.remove(fn)

    return unsubscribe


def publish(event: Event) -> None:
    """Hands `event` to the subscribers, in the order in which they came, and to the log."""
    _log.error("%s", event, extra={"samebits": msgspec.to_builtins(event)})
    with _lock:
        present = tuple(_subscribers)
    for fn in present:
        _tell(fn, event)


def _tell(fn: Subscriber, event: Event) -> None:
    try:
        fn(event)
    except Exception:
        _log.exception("a subscriber of the guard's events failed")
