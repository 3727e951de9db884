"""Stands in for the engines' functions: counts calls, samples some, settles what failed a check."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from samebits.engines import watch
from samebits.guard import cpu_points, results, settle
from samebits.guard.events import counts
from samebits.guard.points import Again, Call, Point
from samebits.guard.setting import Setting, turns


class _State:
    """What the guard knows of a thread.

    Attributes:
        inside: calls are the guard's own, or below one that it watches.
        believing: calls run by the schedule that is believed.
        number: of the next call.
        turns, due: numbers of calls that are sampled, and the next one; -1: none is.
    """

    __slots__ = ("believing", "due", "inside", "number", "turns")

    def __init__(self, rate: float, seed: int) -> None:
        self.inside = self.believing = False
        self.turns = turns(seed, rate)
        self.number, self.due = 0, next(self.turns)


class _Thread(threading.local):
    """Its state: one look-up of a thread's own variable a call."""

    def __init__(self, rate: float, seed: int) -> None:
        self.state = _State(rate, seed)


_thread = _Thread(0, 0)


def start(setting: Setting, seed: int) -> None:
    """Watches the engines' functions from now on."""
    global _thread
    _thread = _Thread(setting.rate, seed)
    watch.install(lambda module, name, fn: _watched(_point(module, name, fn), setting))


def _watched(point: Point, setting: Setting) -> Callable[..., Any]:
    """What takes a function's place: itself, where nothing of it is ever looked at."""
    if setting.rate == 0 and not point.follows:
        return point.fn
    return _observed(point, setting.path)


def _point(module: str, name: str, fn: Callable[..., Any]) -> Point:
    """What is known of an offered function. Those of a GPU are known when there is one."""
    if module.startswith("samebits.engines.cpu"):
        return cpu_points.POINTS[module, name](fn)
    from samebits.guard import gpu_points

    return gpu_points.POINTS[module, name](fn)


def stop() -> None:
    """Gives the functions back."""
    watch.remove()


def _observed(point: Point, path: bool) -> Callable[..., Any]:
    fn, thread, found, out_at = point.fn, _thread, watch.found, point.out_at
    follows = path and point.follows

    def observed(*args: Any, **options: Any) -> Any:
        state = thread.state
        if state.inside:
            return fn(*args, **options)
        counts.calls += 1
        number = state.number
        state.number = number + 1
        call = None
        if out_at is not None and (len(args) > out_at or "out" in options):
            # An addend that the result overwrites has to be kept from before.
            call = point.call(args, options)
        state.inside = True
        try:
            result = fn(*args, **options)
            if follows:
                if found.blind:
                    found.blind = 0
                    counts.unchecked += 1
                else:
                    counts.path_checks += 1
                if found.wrong:
                    _settle_path(call or point.call(args, options), result, number)
            if number == state.due or state.believing:
                _look_at(call or point.call(args, options), result, number, state)
        finally:
            state.inside = False
        return result

    return observed


def _settle_path(call: Call, result: Any, number: int) -> None:
    """A launch below found that its path was wrong."""
    began = time.perf_counter()
    call.result, call.number = result, number
    detail = f"{watch.found.wrong} outputs took another path than the contract's"
    try:
        settle.settle(call, "path", detail, None)
    finally:
        watch.found.wrong = 0  # what replays have found is not the next call's
        counts.seconds += time.perf_counter() - began


def _look_at(call: Call, result: Any, number: int, state: _State) -> None:
    """A call whose turn it is, or all calls while schedules are believed."""
    call.result, call.number = result, number
    if number == state.due:
        state.due = next(state.turns)
    if state.believing:
        _believe(call)
    elif not capturing():
        _sample(call)


def capturing() -> bool:
    """Whether calls of this thread are recorded into a CUDA graph instead of run."""
    return torch.cuda.is_available() and bool(torch.cuda.is_current_stream_capturing())


@contextmanager
def believing() -> Iterator[None]:
    """Calls of this thread in the block have the results of the schedules that are believed."""
    state = _thread.state
    before, state.believing = state.believing, True
    try:
        yield
    finally:
        state.believing = before


def _believe(call: Call) -> None:
    others = call.point.others(call)
    if others:
        results.replace(call.result, others[-1].run())


def _sample(call: Call) -> None:
    """Computes a call again by another schedule, and compares bytes."""
    began = time.perf_counter()
    counts.samples += 1
    try:
        other = _sample_of(call)
        if other is not None:
            second = other.run()
            if not results.same(call.result, second):
                detail = results.difference(call.result, second)
                settle.settle(call, "bytes", detail, (other, second) if other.whole else None)
    finally:
        watch.found.wrong = 0
        counts.seconds += time.perf_counter() - began


def _sample_of(call: Call) -> Again | None:
    """The schedule that a sampled call is compared with: quick ones take turns."""
    others = call.point.others(call)
    quick = [other for other in others if other.quick] or others[-1:]
    return quick[call.number % len(quick)] if quick else None
