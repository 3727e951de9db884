"""What the check works on: something that answers requests, alone or in a batch.

A subject turns each test of `samebits.check.promises` into probes. A probe is a call and the
reference it must equal bit for bit; both give one `Bits` for each request of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from samebits.check.compare import Bits
from samebits.errors import ShapeError

Call = Callable[[], Sequence[Bits]]


class NotApplicable(Exception):
    """A test means nothing for this subject; the message says why."""


class NotRowwise(ShapeError):
    """The target's outputs do not have one row for each row of its inputs."""


@dataclass(frozen=True)
class Probe:
    """One comparison.

    Attributes:
        label, x, group: as in `samebits.check.result.Case`.
        call: the call under test; one `Bits` for each row of its batch.
        expected: for each compared request the call, and the row of it, that it must equal.
        places: the row of `call` that holds each compared request (default: 0, 1, ...).
        stock: stock torch can take the call; False where its kernel is known to fault.
    """

    label: str
    call: Call
    expected: tuple[tuple[Call, int], ...]
    x: int | None = None
    group: str = ""
    places: tuple[int, ...] | None = None
    stock: bool = True

    def place(self, index: int) -> int:
        """The row of the call that holds the `index`-th compared request."""
        return index if self.places is None else self.places[index]


def rows_of(call: Call, count: int) -> tuple[tuple[Call, int], ...]:
    """What a call with the same `count` rows is expected to equal."""
    return tuple((call, row) for row in range(count))


class Subject(Protocol):
    """Anything that can be checked."""

    name: str
    kind: str
    module: torch.nn.Module | None
    device: torch.device

    def describe(self) -> dict[str, str]:
        """Lines for the report's environment: parameters, dtype, shapes."""

    def probes(self, test: str) -> Iterator[Probe]:
        """The probes of one test. Calls that are the same object are run once as a reference.

        Raises:
            NotApplicable: the test means nothing here.
        """


def device_of(module: torch.nn.Module) -> torch.device:
    """Where a module's parameters are; the CPU if it has none."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def to_cpu(result: torch.Tensor) -> torch.Tensor:
    """A result where it is compared: one copy of a whole batch, not one a request."""
    return result.cpu() if result.is_cuda else result


THREADS = (1, 2, 3, 4)


def thread_probes(call: Call, count: int, device: torch.device) -> Iterator[Probe]:
    """`call` with `count` rows and other numbers of threads, against the number in force."""
    if device.type != "cpu":
        raise NotApplicable(f"computed on {device.type}")
    before = torch.get_num_threads()

    def with_threads(threads: int) -> Call:
        def run() -> Sequence[Bits]:
            torch.set_num_threads(threads)
            try:
                return call()
            finally:
                torch.set_num_threads(before)

        return run

    for threads in THREADS:
        if threads != before:
            yield Probe(
                f"M = {count}, {threads} threads",
                with_threads(threads),
                rows_of(call, count),
                x=threads,
                group=f"M = {count}",
            )


def repeat_probes(call: Call, count: int, times: int, device: torch.device) -> Iterator[Probe]:
    """`call` with `count` rows again and again, against its first result.

    On a GPU every second call runs beside other work, which takes its multiprocessors away.
    """
    for time in range(1, times + 1):
        loaded = device.type == "cuda" and time % 2 == 0
        label = f"M = {count}, repeat {time}" + (" under load" if loaded else "")
        again = under_load(call) if loaded else call
        yield Probe(label, again, rows_of(call, count), x=time, group=f"M = {count}")


def under_load(call: Call) -> Call:
    """`call` while another stream of the GPU is busy."""

    def run() -> Sequence[Bits]:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            busy = torch.ones(2**22, device="cuda")
            for _ in range(32):
                busy = busy * 1.0000001
        try:
            return call()
        finally:
            stream.synchronize()

    return run


def moved(
    module: torch.nn.Module, call: Call, move: Callable[[torch.Tensor], torch.Tensor]
) -> Call:
    """`call` while the module's parameters hold the same values elsewhere in memory."""

    def run() -> Sequence[Bits]:
        kept = [(parameter, parameter.data) for parameter in module.parameters()]
        try:
            for parameter, data in kept:
                parameter.data = move(data)
            return call()
        finally:
            for parameter, data in kept:
                parameter.data = data

    return run


def shifted(t: torch.Tensor) -> torch.Tensor:
    """A copy of `t` that starts one element after an aligned address."""
    room = torch.empty(t.numel() + 1, dtype=t.dtype, device=t.device)
    copy = room[1:].view(t.shape)
    return copy.copy_(t)


def transposed(t: torch.Tensor) -> torch.Tensor:
    """A copy of `t` with its last two axes swapped in memory (vectors: as they are)."""
    return t.mT.contiguous().mT if t.dim() >= 2 else t


def gapped(t: torch.Tensor) -> torch.Tensor:
    """A copy of `t` in every second place of a wider tensor, with NaN (or ones) between."""
    if not t.dim():
        return t
    filler = float("nan") if t.is_floating_point() or t.is_complex() else 1
    room = t.new_full((*t.shape[:-1], 2 * t.shape[-1]), filler)
    room[..., ::2] = t
    return room[..., ::2]


def padded_rows(t: torch.Tensor) -> torch.Tensor:
    """A copy of `t` whose rows stand 3 elements apart, with NaN (or ones) between."""
    if not t.dim():
        return t
    filler = float("nan") if t.is_floating_point() or t.is_complex() else 1
    room = t.new_full((*t.shape[:-1], t.shape[-1] + 3), filler)
    room[..., : t.shape[-1]] = t
    return room[..., : t.shape[-1]]


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one element off alignment": shifted,
    "rows apart": padded_rows,
    "every second element": gapped,
    "column-major": transposed,
}
