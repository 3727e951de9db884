"""Sums of what a KV cache holds, kept when it is written and compared when its turn comes.

A bit that flips in a cache gives every later token wrong keys, and computing again agrees with it.
So a cache remembers the sum of the integer view of every position of every sequence, and now and
then sums again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from samebits import bits
from samebits.engines.cpu import _cpu
from samebits.errors import GuardError
from samebits.guard import control, observe, settle
from samebits.guard.devices import identify
from samebits.guard.events import Event, counts, publish


class Sums:
    """Of one layer of a cache: tensors [batch, heads, positions, width], contiguous.

    Sums begin with the first write while calls are sampled, and what was written before is not
    checked. The share of writes before which all is summed again is that of sampled calls.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._device = tensors[0].device
        self._kept: _cpu.CacheSums | _Apart = (
            _together(tensors) if self._device.type == "cpu" else _Apart(tensors)
        )
        self._tensors = tensors  # whose memory is read
        self._from: int | None = None
        self._number = 0

    def write(self, rows: int, begin: int, end: int) -> None:
        """Positions [begin, end) of the first `rows` sequences were written.

        Raises:
            GuardError: what was there before has changed.
        """
        if control.setting().rate == 0:
            self._from = None
            return
        if self._from is None or begin < self._from:
            self._from, self._number = begin, 0
        if _cpu.guard_due(self._number) and not observe.capturing():
            self.check(rows, begin)
        self._number += 1
        self._kept.write(rows, begin, end)

    def move(self, source: torch.Tensor) -> None:
        """Sequence i has become what sequence ``source[i]`` was. Sums move with it: summed anew,
        they would be those of what changed before."""
        if self._from is not None:
            if isinstance(self._kept, _Apart):
                self._kept.move(source)
            else:
                self._kept.move(source.tolist())

    def check(self, rows: int, end: int) -> None:
        """Compares the positions that are known, up to `end`.

        Raises:
            GuardError: some have changed since they were written.
        """
        if self._from is None or end <= self._from:
            return
        began = time.perf_counter()
        counts.cache_checks += 1
        changed = self._kept.changed(rows, self._from, end)
        counts.seconds += time.perf_counter() - began
        if changed:
            raise _lost(self._device, changed, time.perf_counter() - began)


def _together(tensors: Sequence[torch.Tensor]) -> _cpu.CacheSums:
    """On a CPU: one call sums all tensors, where they lie."""
    sequences, heads, length, _ = tensors[0].shape
    held = [(x.data_ptr(), x.element_size(), x.shape[3]) for x in tensors]
    return _cpu.CacheSums(sequences, heads, length, held)


class _Apart:
    """On any other device; see `_cpu.CacheSums`."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._views = [bits.view(x) for x in tensors]
        sequences, _, length, _ = tensors[0].shape
        self._sums = [
            torch.zeros(sequences, length, dtype=torch.int64, device=x.device) for x in tensors
        ]

    def write(self, rows: int, begin: int, end: int) -> None:
        for view, sums in zip(self._views, self._sums, strict=True):
            sums[:rows, begin:end] = _columns(view, rows, begin, end)

    def move(self, source: torch.Tensor) -> None:
        for sums in self._sums:
            sums[: len(source)] = sums.index_select(0, source.to(sums.device))

    def changed(self, rows: int, begin: int, end: int) -> list[int]:
        wrong = torch.stack(
            [
                _columns(view, rows, begin, end) != sums[:rows, begin:end]
                for view, sums in zip(self._views, self._sums, strict=True)
            ]
        )
        found: list[int] = (begin + wrong.flatten(0, 1).any(0).nonzero().flatten()).tolist()
        return found


def _columns(view: torch.Tensor, rows: int, begin: int, end: int) -> torch.Tensor:
    """The sums of positions [begin, end) of the first `rows` sequences: int64 [rows, positions]."""
    return view[:rows, :, begin:end].sum((1, 3), dtype=torch.int64)


def _lost(device: torch.device, positions: list[int], seconds: float) -> GuardError:
    counts.mismatches += 1
    where = identify(device)
    event = Event(
        time=time.time(),
        kind="cache",
        op="kv cache",
        contract="",
        plan=settle.plan_id(where.kind),
        device=where,
        site=settle.site(),
        schedule="what is there now",
        reference="what was written",
        detail=f"{len(positions)} positions, the first is {positions[0]}",
        verdict="late",
        seconds=seconds,
    )
    publish(event)
    return GuardError(
        f"{event}. What was written is not known any more: drop the cache, and run the request "
        "again from its tokens",
        event,
    )
