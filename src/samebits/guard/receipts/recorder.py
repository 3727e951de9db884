"""The recorder: takes receipts from a serving process and writes them in batches, on a thread of
its own, so that a request waits for no disk.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from samebits.errors import ReceiptError, SettingError
from samebits.guard.events import Event, subscribe
from samebits.guard.receipts.keys import Key
from samebits.guard.receipts.ledger import SYNCHRONOUS, Ledger
from samebits.guard.receipts.record import Gap, Head, Incident, Receipt, Record, address, encode

log = logging.getLogger("samebits.guard")

#: Records of one transaction at most; more wait for the next.
BATCH = 4096
#: Seconds that a request waits for its receipt where it may go on without.
_PATIENCE = 1.0
#: Names of objects that a recorder remembers having written.
MOST_SHARED = 1024
#: Seconds between attempts to write after a failure: doubled from the first to the last.
RETRY = 0.05, 5.0
SUMS = ("layers", "operations", "none")


#: From token ids to text.
Text = Callable[[list[int]], str]


@dataclass
class Counters:
    """What a recorder has done; read by metrics and by `samebits status`."""

    written: int = 0
    lost: int = 0
    batches: int = 0
    failures: int = 0
    seconds: float = 0.0

    def add(self, other: Counters) -> None:
        """Adds another recorder's."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class _Item:
    body: bytes
    objects: tuple[tuple[str, bytes], ...]


class Recorder:
    """Writes receipts to one file; made by `samebits.receipts`.

    Any number of threads may add to one recorder, and any number of processes may have one for the
    same file. After a fork the child opens the file anew.

    Attributes:
        sums, audit, text: what the integrations record, see `samebits.receipts`.
        counters: what it has done so far.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        on_error: str = "stop",
        durability: str = "power",
        key: Key | None = None,
        sums: str = "layers",
        audit: float = 0.0,
        text: Text | None = None,
        timeout: float = 30.0,
        interval: float = 0.01,
        backlog: int = 100_000,
    ) -> None:
        for name, value, allowed in (
            ("on_error", on_error, ("stop", "continue")),
            ("durability", durability, tuple(SYNCHRONOUS)),
            ("sums", sums, SUMS),
        ):
            if value not in allowed:
                raise SettingError(f"{name}={value!r}: use one of {', '.join(allowed)}")
        if not isinstance(audit, int | float) or not 0 <= audit <= 1:
            raise SettingError(f"audit={audit!r}: the share of requests is a number from 0 to 1")
        for name, seconds in (("timeout", timeout), ("interval", interval)):
            if not isinstance(seconds, int | float) or not 0 <= seconds <= threading.TIMEOUT_MAX:
                raise SettingError(f"{name}={seconds!r} is no number of seconds from 0 on")
        if text is not None and not callable(text):
            raise SettingError(f"text={text!r}: give a function of token ids, as tokenizer.decode")
        if not isinstance(backlog, int) or backlog < 1:
            raise SettingError(f"backlog={backlog!r}: at least one receipt must be able to wait")
        self.path, self.on_error, self.timeout = Path(path), on_error, timeout
        self.sums, self.audit, self.text = sums, audit, text
        self.interval, self.backlog = interval, backlog
        self.counters = Counters()
        self._options: dict[str, Any] = {"durability": durability, "key": key, "timeout": timeout}
        self._ledger: Ledger | None = self._open()
        self._begin()
        self._unsubscribe = subscribe(self._incident)
        atexit.register(self._at_exit)

    def _open(self) -> Ledger:
        return Ledger(self.path, **self._options)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._cond = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._writing = 0
        self._urgent = 0
        self._lost = 0
        self._first_lost = self._last_lost = 0
        self._error: ReceiptError | None = None
        self._shared: set[str] = set()  # identities that are in the file
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="samebits receipts", daemon=True)
        self._thread.start()

    def add(self, record: Record, objects: dict[str, bytes] | None = None) -> None:
        """Hands over a record, to be written within about `interval` seconds.

        Args:
            record: what to write.
            objects: contents of the objects that it names, by name; what the file has already is
                not written again.

        Raises:
            ReceiptError: with ``on_error="stop"``: an earlier record could not be written, or
                `backlog` records wait and none was written for `timeout` seconds. The recorder is
                closed, or an object's name is not its hash.
        """
        self._after_fork()
        new = tuple(pair for pair in (objects or {}).items() if pair[0] not in self._shared)
        for name, body in new:
            if address(body) != name:
                raise ReceiptError(f"object {name}: its bytes have another hash")
        if self.text is not None and isinstance(record, Receipt) and record.text is None:
            record = msgspec.structs.replace(record, text=self.text(record.input))
        item = _Item(encode(record), new)
        with self._cond:
            self._check()
            if len(self._waiting) >= self.backlog:
                if self.on_error == "continue":
                    self._lose(1)
                    return
                room = lambda: len(self._waiting) < self.backlog or self._error  # noqa: E731
                if not self._cond.wait_for(room, self.timeout):
                    raise ReceiptError(
                        f"receipts {self.path}: {self.backlog} wait, and none was written for "
                        f"{self.timeout:g} s"
                    )
                self._check()
            self._waiting.append(item)
            if len(self._waiting) == 1:
                self._cond.notify_all()

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything that was added before is in the file.

        With ``on_error="continue"`` it waits for a second at most, and not at all for a file that
        could not be written a moment ago: requests go on.

        Raises:
            ReceiptError: with ``on_error="stop"``: it could not be written, or not in `timeout`
                seconds (None: twice the recorder's own).
        """
        self._after_fork()
        if timeout is None:
            timeout = 2 * self.timeout if self.on_error == "stop" else _PATIENCE
        with self._cond:
            self._urgent += 1
            self._cond.notify_all()
            try:
                done = self._cond.wait_for(
                    lambda: self._error or not (self._waiting or self._writing),
                    timeout,
                )
            finally:
                self._urgent -= 1
            if self.on_error == "stop":
                self._check()
                if not done:
                    raise ReceiptError(f"receipts {self.path}: {len(self._waiting)} still wait")

    def head(self) -> Head:
        """Where the chain ends, once all that was added is written; keep it somewhere else.

        Raises:
            ReceiptError: as `flush`; the file cannot be read.
        """
        self.flush()
        ledger = self._open()
        try:
            return ledger.head()
        finally:
            ledger.close()

    @property
    def waiting(self) -> int:
        """Records that are not in the file yet."""
        return len(self._waiting) + self._writing

    def close(self) -> None:
        """Writes what waits and closes the file. Idempotent.

        Raises:
            ReceiptError: with ``on_error="stop"``: something could not be written.
        """
        if self._closed or self._pid != os.getpid():
            return
        try:
            self.flush(2 * self.timeout)
        finally:
            with self._cond:
                self._closed = True
                self._cond.notify_all()
            self._thread.join(self.timeout)
            self._unsubscribe()
            atexit.unregister(self._at_exit)
            left = len(self._waiting) + self._lost
            if left:
                self.counters.lost += len(self._waiting)
                log.error(
                    "receipts: %d were not written", left,
                    extra=_extra("receipts_lost", lost=left, path=str(self.path)),
                )  # fmt: skip
            _forget(self)

    def _at_exit(self) -> None:
        with suppress(ReceiptError):  # the log has it
            self.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _incident(self, event: Event) -> None:
        """Writes what the guard caught into the chain."""
        self.add(Incident(time=int(event.time * 1e9), event=msgspec.to_builtins(event)))

    def _check(self) -> None:
        if self._closed:
            raise ReceiptError(f"receipts {self.path}: the recorder is closed")
        if self._error is not None and self.on_error == "stop":
            raise ReceiptError(str(self._error))

    def _after_fork(self) -> None:
        """A child has neither the thread nor a right to the parent's connection to the file."""
        if self._pid != os.getpid():
            self._ledger = None  # not closed: that would give up the parent's locks
            self.counters = Counters()
            self._begin()

    def _lose(self, count: int) -> None:
        now = time.time_ns()
        self._first_lost = self._first_lost or now
        self._last_lost = now
        self._lost += count
        self.counters.lost += count

    # ---- the writer's thread ------------------------------------------------------------------

    def _run(self) -> None:
        pause = RETRY[0]
        while True:
            batch = self._take()
            if batch is None:
                break
            error = self._write(batch)
            with self._cond:
                self._writing = 0
                if error is None:
                    pause, self._error = RETRY[0], None
                    self._cond.notify_all()
                    continue
                self._waiting.extendleft(reversed(batch))
                self._failed(error)
                if self.on_error == "stop" or self._closed:
                    break
                self._cond.wait_for(lambda: self._closed, pause)
            pause = min(2 * pause, RETRY[1])
        if self._ledger is not None:
            try:
                self._ledger.close()
            except ReceiptError as error:
                log.warning("%s", error)

    def _take(self) -> list[_Item] | None:
        """The next batch; None at the end. Waits a little for more, unless somebody waits for it.

        A record counts as being written from here on.
        """
        with self._cond:
            self._cond.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            self._cond.wait_for(
                lambda: self._urgent or self._closed or len(self._waiting) >= BATCH, self.interval
            )
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            self._writing = len(batch)
            self._cond.notify_all()
            return batch

    def _write(self, batch: list[_Item]) -> ReceiptError | None:
        start = time.perf_counter()
        bodies = [item.body for item in batch]
        lost = self._lost
        if lost:
            reason = str(self._error or "the backlog was full")
            gap = Gap(lost=lost, first=self._first_lost, time=self._last_lost, reason=reason)
            bodies.append(encode(gap))
        try:
            if self._ledger is None:
                self._ledger = self._open()
            self._ledger.append(bodies, (pair for item in batch for pair in item.objects))
        except ReceiptError as error:
            return error
        except Exception as error:
            return ReceiptError(f"receipts {self.path}: {type(error).__name__}: {error}")
        finally:
            self.counters.seconds += time.perf_counter() - start
        self._shared.update(pair[0] for item in batch for pair in item.objects[:1])
        if len(self._shared) > MOST_SHARED:
            self._shared.clear()
        with self._cond:
            self._lost -= lost
            self._first_lost = 0 if not self._lost else self._first_lost
        self.counters.written += len(batch)
        self.counters.batches += 1
        return None

    def _failed(self, error: ReceiptError) -> None:
        self.counters.failures += 1
        if self._error is None:
            about = {"on_error": self.on_error, "waiting": len(self._waiting)}
            extra = _extra("receipts_failed", path=str(self.path), **about)
            log.error("%s", error, extra=extra)
        self._error = error
        self._cond.notify_all()


def _extra(event: str, **values: Any) -> dict[str, Any]:
    """What a line of the log says besides its text."""
    return {"samebits": {"event": event, **values}}


_active: list[Recorder] = []


def receipts(
    path: str | Path,
    *,
    on_error: str = "stop",
    durability: str = "power",
    key: str | Path | None = None,
    sums: str = "layers",
    audit: float = 0.0,
    text: Text | None = None,
    timeout: float = 30.0,
    interval: float = 0.01,
    backlog: int = 100_000,
) -> Recorder:
    """Keeps a receipt of each request that an integration serves in this process from now on.

        with samebits.receipts("receipts.sqlite"):
            model.generate(...)

    docs/receipts.md says what a receipt holds, proves, and does not prove.

    Args:
        path: an SQLite file; made if it is not there, appended to if it is.
        on_error: what happens when a receipt cannot be written (disk full, file locked). "stop":
            the next request raises `ReceiptError`. "continue": requests go on; up to `backlog`
            receipts wait, and what is lost is counted, logged, and noted in the chain when the file
            can be written to again.
        durability: what a receipt in the file survives: "power" (also a power cut; the disk is
            waited for once a batch) or "process" (the process being killed).
        key: a file with at least 16 random bytes, which sign the chain's head.
        sums: integer checksums of the results of "layers" (each layer and the logits), of
            "operations" (each module's operands and results, so that a replay can name one), or
            "none".
        audit: share of requests for which operands are kept, for `samebits audit`.
        text: a function from token ids to text, such as ``tokenizer.decode``, to keep prompts as
            text, too; None: they are kept as ids only.
        timeout: seconds to wait for other writers of the file.
        interval: seconds that a receipt may wait for others to be written with.
        backlog: receipts that may wait.

    Returns:
        The recorder; it closes at the end of a ``with`` block, by `close`, or with the process.

    Raises:
        ReceiptError: the file cannot be written to, is no ledger, or was cut or edited at its end.
        SettingError: an argument is not understood, or another recorder is open.
    """
    if _active and _active[0]._pid == os.getpid():
        raise SettingError(f"receipts are already kept, in {_active[0].path}: close that one first")
    recorder = Recorder(
        path, on_error=on_error, durability=durability, key=None if key is None else Key.read(key),
        sums=sums, audit=audit, text=text, timeout=timeout, interval=interval, backlog=backlog,
    )  # fmt: skip
    _active[:] = [recorder]
    return recorder


def active() -> Recorder | None:
    """The recorder that integrations write to, if there is one."""
    return _active[0] if _active else None


#: Of the recorders that this process has closed.
_closed = Counters()


def totals() -> Counters:
    """What this process' recorders have done so far."""
    found = Counters()
    for counters in (_closed, *(recorder.counters for recorder in _active)):
        found.add(counters)
    return found


def _forget(recorder: Recorder) -> None:
    if recorder in _active:
        _closed.add(recorder.counters)
    _active[:] = [other for other in _active if other is not recorder]
