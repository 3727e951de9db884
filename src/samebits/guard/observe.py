"""Stands in for the engines' functions: counts calls, samples some, settles what failed a check."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from samebits.engines import watch
from samebits.engines.cpu import _cpu
from samebits.guard import cpu_points, results, settle
from samebits.guard.events import counts
from samebits.guard.points import Again, Call, Point
from samebits.guard.setting import Setting


def start(setting: Setting, seed: int) -> None:
    """Watches the engines' functions from now on."""
    _cpu.guard_start(seed, setting.rate)
    watch.install(lambda module, name, fn: _watched(_point(module, name, fn), setting))


def _watched(point: Point, setting: Setting) -> Callable[..., Any]:
    """What takes a function's place: itself, where nothing of it is ever looked at."""
    if setting.rate == 0 and not point.follows:
        return point.fn

    def keep(*args: Any, **options: Any) -> Call:
        return point.call(args, options)

    follows, out_at = setting.path and point.follows, point.out_at
    return _cpu.Guarded(
        point.fn, keep, _settle_path, _look_at, follows, -1 if out_at is None else out_at
    )


def _point(module: str, name: str, fn: Callable[..., Any]) -> Point:
    """What is known of an offered function. Those of a GPU are known when there is one."""
    if module.startswith("samebits.engines.cpu"):
        return cpu_points.POINTS[module, name](fn)
    from samebits.guard import gpu_points

    return gpu_points.POINTS[module, name](fn)


def stop() -> None:
    """Gives the functions back."""
    watch.remove()


def _settle_path(call: Call, result: Any, number: int, wrong: int) -> None:
    """A launch below found that its path was wrong."""
    began = time.perf_counter()
    call.result, call.number = result, number
    detail = f"{wrong} outputs took another path than the contract's"
    try:
        settle.settle(call, "path", detail, None)
    finally:
        counts.seconds += time.perf_counter() - began


def _look_at(call: Call, result: Any, number: int, _: int) -> None:
    """A call whose turn it is, or all calls while schedules are believed."""
    call.result, call.number = result, number
    if believes():
        _believe(call)
    elif not capturing():
        _sample(call)


def capturing() -> bool:
    """Whether calls of this thread are recorded into a CUDA graph instead of run."""
    return torch.cuda.is_available() and bool(torch.cuda.is_current_stream_capturing())


@contextmanager
def believing() -> Iterator[None]:
    """Calls of this thread in the block have the results of the schedules that are believed."""
    before = _cpu.guard_believe(True)
    try:
        yield
    finally:
        _cpu.guard_believe(before)


def believes() -> bool:
    """Whether this thread is in a block of `believing`."""
    return _cpu.guard_believes()


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
        counts.seconds += time.perf_counter() - began


def _sample_of(call: Call) -> Again | None:
    """The schedule that a sampled call is compared with: quick ones take turns."""
    others = call.point.others(call)
    quick = [other for other in others if other.quick] or others[-1:]
    return quick[call.number % len(quick)] if quick else None
