"""What kernels that check their own paths are given, and where they say that something was wrong.

A ticket is four int32 on the device:

    0  the digest that a path has to have, or the seed of one that depends on lengths
    1  how many tiles were wrong; kernels only ever add
    2  keys that a leaf of the contract's attention holds, else 0

A kernel compares by itself; nothing waits for it. The tickets of a device lie in one table, which
is read as a whole whenever somebody wants to know (`take`), e.g. once a step. What it has stays
where it is as long as the process runs, so kernels get a ticket by its address: captured graphs,
and launches that start again without Python (`driver.recipes`), keep writing there. A table that is
full goes on in another block of rows: no two kinds of calls ever share a ticket.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch

#: Tickets of a block. Most processes need one, which is read at once.
ROWS = 1 << 12
_EXPECTED, _WRONG, _LEAF = range(3)


@dataclass(frozen=True)
class Subject:
    """What a ticket is for: an operation, the id of its contract, and a schedule."""

    op: str
    contract: str
    schedule: str


class _Table:
    """The tickets of a device: ticket i is row i % ROWS of block i // ROWS, for ``subjects[i]``.

    What was taken is remembered here, and not set back there: kernels on other streams may be
    adding.
    """

    def __init__(self) -> None:
        self.blocks: list[torch.Tensor] = []
        self.subjects: list[Subject] = []
        self.known: dict[tuple[Subject, int, int], torch.Tensor] = {}
        self.taken: list[list[int]] = []


_tables: dict[torch.device, _Table] = {}
_lock, _reading = threading.Lock(), threading.Lock()
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
        table, key = _tables.setdefault(device, _Table()), (subject, expected, leaf)
        if key not in table.known:
            with _outside_of_captures(device):
                block, place = divmod(len(table.subjects), ROWS)
                if block == len(table.blocks):
                    table.taken.append([])
                    table.blocks.append(torch.zeros(ROWS, 4, dtype=torch.int32, device=device))
                row = table.blocks[block][place]
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
    told = []
    with _reading:
        for block, rows in enumerate(list(table.blocks)):
            subjects = table.subjects[block * ROWS :][:ROWS]
            counts, taken = rows[: len(subjects), _WRONG].tolist(), table.taken[block]
            if counts == taken:
                continue
            taken += [0] * (len(counts) - len(taken))
            table.taken[block] = counts
            wrong = [(now - then) & 0xFFFFFFFF for now, then in zip(counts, taken, strict=True)]
            told += [(subject, n) for subject, n in zip(subjects, wrong, strict=True) if n]
    return told
