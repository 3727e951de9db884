"""Stands in for the engines' functions: counts calls, samples some, settles what failed a check."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from samebits.engines import watch
from samebits.guard import results, settle
from samebits.guard.events import counts
from samebits.guard.points import Again, Call, Point, point_of
from samebits.guard.setting import Setting, chosen

#: Call numbers that are looked through at a time for sampled ones.
_BLOCK = 4096


class _Thread(threading.local):
    """What the guard knows of a thread.

    Attributes:
        inside: calls are the guard's own, or below one that it watches.
        number: of the next call.
        ahead: numbers of sampled calls, the next one last.
        known: numbers below this have been looked through.
    """

    inside = False
    number = 0
    known = 0
    sampled = -1
    ahead: list[int]

    def __init__(self) -> None:
        self.ahead = []


_thread = _Thread()


def start(setting: Setting, seed: int) -> None:
    """Watches the engines' functions from now on."""
    global _thread
    _thread = _Thread()
    watch.install(lambda module, name, fn: _observed(point_of(module, name, fn), setting, seed))


def stop() -> None:
    """Gives the functions back."""
    watch.remove()


@contextmanager
def unwatched() -> Iterator[None]:
    """Calls of this thread in the block are nobody's business."""
    before, _thread.inside = _thread.inside, True
    try:
        yield
    finally:
        _thread.inside = before


def _observed(point: Point, setting: Setting, seed: int) -> Callable[..., Any]:
    fn, rate, state = point.fn, setting.rate, _thread
    overwrites, follows = point.overwrites, setting.path and point.follows

    def observed(*args: Any, **options: Any) -> Any:
        if state.inside:
            return fn(*args, **options)
        counts.calls += 1
        counts.path_checks += follows
        # An addend that the result overwrites has to be kept from before.
        call = point.call(args, options) if overwrites else None
        state.inside = True
        try:
            result = fn(*args, **options)
            wrong = watch.take()
            number = state.number
            state.number = number + 1
            sampled = rate > 0 and _is_sampled(state, number, seed, rate)
            if wrong or sampled:
                call = call or point.call(args, options)
                _check(call, result, wrong, number)
        finally:
            state.inside = False
            watch.take()  # what replays have found, or a call that failed, is not the next one's
        return result

    return observed


def _is_sampled(state: _Thread, number: int, seed: int, rate: float) -> bool:
    while number >= state.known:
        numbers = range(state.known, state.known + _BLOCK)
        state.ahead[:0] = reversed(chosen(seed, numbers, rate))
        state.known = numbers.stop
    if state.ahead and state.ahead[-1] == number:
        state.ahead.pop()
        return True
    return False


def _check(call: Call, result: Any, wrong: int, number: int) -> None:
    """Settles a call whose path was wrong, or whose turn it is."""
    began = time.perf_counter()
    if wrong:
        detail = f"{wrong} outputs took another path than the contract's"
        settle.settle(call, result, "path", detail, None)
    else:
        counts.samples += 1
        other = _sample_of(call, number)
        if other is not None:
            second = other.run()
            if not results.same(result, second):
                detail = results.difference(result, second)
                settle.settle(call, result, "bytes", detail, (other, second))
    counts.seconds += time.perf_counter() - began


def _sample_of(call: Call, number: int) -> Again | None:
    """The schedule that a sampled call is compared with: quick ones take turns."""
    others = call.point.others(call)
    quick = [other for other in others if other.quick] or others[-1:]
    return quick[number % len(quick)] if quick else None
