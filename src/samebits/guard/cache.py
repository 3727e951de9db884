"""Sums of what a KV cache holds, kept when it is written and compared when its turn comes.

A bit that flips in a cache gives every later token wrong keys, and computing again agrees with it.
So a cache remembers the sum of the integer view of every position, and now and then sums again.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from samebits import bits
from samebits.errors import GuardError
from samebits.guard import control, observe, settle
from samebits.guard.devices import identify
from samebits.guard.events import Event, counts, publish
from samebits.guard.setting import turns


class Sums:
    """Of one layer of a cache: tensors [batch, heads, positions, width], contiguous.

    On a CPU NumPy adds, in the same memory: a call of it costs a fifth of torch's.

    Sums begin with the first write while calls are sampled, and what was written before is not
    checked. The share of writes before which all is summed again is that of sampled calls.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._device = tensors[0].device
        on_cpu = self._device.type == "cpu"
        views = [bits.view(x) for x in tensors]
        self._views: list[Any] = [view.numpy() for view in views] if on_cpu else views
        self._int64: Any = np.int64 if on_cpu else torch.int64
        self._sums: list[Any] | None = None
        self._from = 0
        self._number = 0

    def write(self, rows: int, begin: int, end: int) -> None:
        """Positions [begin, end) of the first `rows` sequences were written.

        Raises:
            GuardError: what was there before has changed.
        """
        setting = control.setting()
        if setting.rate == 0:
            self._sums = None
            return
        if self._sums is None or begin < self._from:
            length = self._views[0].shape[2]
            self._sums = [self._zeros(length) for _ in self._views]
            self._from, self._number, self._rate = begin, 0, setting.rate
            self._turns = turns(control.seed(), setting.rate)
            self._due = next(self._turns)
        if self._number == self._due:
            self._due = next(self._turns)
            if not observe.capturing():
                self.check(rows, begin)
        self._number += 1
        for view, sums in zip(self._views, self._sums, strict=True):
            sums[begin:end] = self._columns(view, rows, begin, end)

    def rewrite(self, rows: int, end: int) -> None:
        """All positions up to `end` were moved among sequences: they are summed anew."""
        if self._sums is not None:
            for view, sums in zip(self._views, self._sums, strict=True):
                sums[self._from : end] = self._columns(view, rows, self._from, end)

    def check(self, rows: int, end: int) -> None:
        """Compares the positions that are known, up to `end`.

        Raises:
            GuardError: some have changed since they were written.
        """
        if self._sums is None or end <= self._from:
            return
        began = time.perf_counter()
        counts.cache_checks += 1
        changed: set[int] = set()
        for view, sums in zip(self._views, self._sums, strict=True):
            now = self._columns(view, rows, self._from, end)
            wrong = now != sums[self._from : end]
            changed |= {self._from + at for at, differs in enumerate(wrong.tolist()) if differs}
        counts.seconds += time.perf_counter() - began
        if changed:
            raise _lost(self._device, sorted(changed), time.perf_counter() - began)

    def _zeros(self, length: int) -> Any:
        if self._int64 is np.int64:
            return np.zeros(length, np.int64)
        return torch.zeros(length, dtype=torch.int64, device=self._device)

    def _columns(self, view: Any, rows: int, begin: int, end: int) -> Any:
        """The sum of every position [begin, end): int64."""
        return view[:rows, :, begin:end].sum((0, 1, 3), dtype=self._int64)


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
