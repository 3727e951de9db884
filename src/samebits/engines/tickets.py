"""What kernels that check their own paths are given, and where they say that something was wrong.

A ticket is four int32 on the device:

    0  the digest that a path has to have, or the seed of one that depends on lengths
    1  how many tiles were wrong; kernels only ever add
    2  keys that a leaf of the contract's attention holds, else 0

A kernel compares by itself; nothing waits for it. The tickets of a device lie in one table, which
is read as a whole whenever somebody wants to know (`take`), e.g. once a step. It stays where it is
as long as the process runs, so kernels get a ticket by its address: captured graphs, and launches
that start again without Python (`driver.recipes`), keep writing there.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch

#: Tickets of a device; kinds of calls beyond that share the last one.
ROWS = 1 << 12
_EXPECTED, _WRONG, _LEAF = range(3)


@dataclass(frozen=True)
class Subject:
    """What a ticket is for: an operation, the id of its contract, and a schedule."""

    op: str
    contract: str
    schedule: str


class _Table:
    def __init__(self, device: torch.device) -> None:
        self.rows = torch.zeros(ROWS, 4, dtype=torch.int32, device=device)
        self.subjects: list[Subject] = []
        self.known: dict[tuple[Subject, int, int], torch.Tensor] = {}


_tables: dict[torch.device, _Table] = {}
_lock = threading.Lock()
_checking = False


def check(on: bool) -> None:
    """Has launches that are made ready from now on check their paths, or not."""
    global _checking
    _checking = on


def checking() -> bool:
    """Whether launches that are made ready now check their paths."""
    return _checking


def ticket(device: torch.device, subject: Subject, expected: int, leaf: int = 0) -> torch.Tensor:
    """A ticket [4] of `device`; the same for the same arguments.

    Args:
        expected: digest or seed, 32 bits.
        leaf: keys of a leaf, for attention.
    """
    with _lock:
        table, key = _tables.get(device), (subject, expected, leaf)
        if table is None or key not in table.known:
            with _outside_of_captures(device):
                if table is None:
                    table = _tables[device] = _Table(device)
                row = table.rows[min(len(table.subjects), ROWS - 1)]
                signed = expected - (1 << 32) if expected >> 31 else expected
                row.copy_(torch.tensor([signed, 0, leaf, 0], dtype=torch.int32))
            table.subjects.append(subject)
            table.known[key] = row
        return table.known[key]


_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@contextlib.contextmanager
def _outside_of_captures(device: torch.device) -> Iterator[None]:
    """What the block does on `device` is done when it ends, even while a graph is captured, and is
    no part of the graph.

    A thread that captures may not wait, nor copy from the host, unless it says that it knows what
    it does, and takes a stream that is not captured.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        yield
        return
    driver, mode = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(_RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))  # gives the one before, too
    try:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            yield
            stream.synchronize()
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def take(device: torch.device) -> list[tuple[Subject, int]]:
    """Who has found how many wrong tiles on `device` since the last time. Waits for the device."""
    table = _tables.get(device)
    if table is None or not table.subjects:
        return []
    used = min(len(table.subjects), ROWS)
    wrong = table.rows[:used, _WRONG]
    found = wrong.tolist()
    if not any(found):
        return []
    wrong.zero_()
    return [(table.subjects[i], n) for i, n in enumerate(found) if n]
