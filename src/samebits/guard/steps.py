"""Steps: what a framework does between two tokens, replayed as a whole if a kernel objects.

On a GPU kernels check their paths without being waited for. Whoever runs a step asks at its end,
where the token is waited for anyway, and runs the step again before the token leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from samebits.engines import tickets
from samebits.errors import SettingError
from samebits.guard import observe, results, settle
from samebits.guard.devices import identify
from samebits.guard.events import Event, Verdict, counts, publish

T = TypeVar("T")


def step(
    run: Callable[[], T],
    *,
    undo: Callable[[], None] | None = None,
    device: Any = None,
    agree: Callable[[bool], bool] | None = None,
    fixed: bool = False,
) -> T:
    """Runs one step, and again if kernels found that they took another path than the contract's.

    Then the step runs once more by its own schedules, and by those that are believed; two of three
    that agree are right. The last run is one of the two, so caches hold what belongs to the result.

    Args:
        run: computes the step; gives a tensor or a tuple of them.
        undo: called before each further run: takes back what a run did besides, e.g. crops a KV
            cache that grew. A cache that is written by position needs none.
        device: where it computes; the current GPU if there is one.
        agree: for one of several ranks: from whether this rank found something to whether any did.
            All of them run again, or none: a collective waits for all.
        fixed: further runs have the same schedules, as a captured graph's replays do. The last one
            is believed if its path is right.

    Returns:
        The result of `run` that is believed.

    Raises:
        GuardError: no two of three runs agree, or the device has had too many events.
        SettingError: no kernel runs on such a device; `run` was not called.
    """
    place = _device(device)
    result = run()
    found = tickets.take(place)
    if not (bool(found) if agree is None else agree(bool(found))):
        return result
    began = time.perf_counter()
    counts.mismatches += bool(found)
    counts.replays += 2
    first = results.copied(result)

    def again() -> T:
        if undo is not None:
            undo()
        return run()

    second = again()
    kept = results.copied(second)
    passed = not tickets.take(place)
    with observe.believing():
        believed = again()
    believable = not tickets.take(place) or not fixed
    verdict = _verdict(first, kept, believed, passed) if believable else "undecided"
    replaced = not results.same(first, believed)
    counts.seconds += time.perf_counter() - began
    if found or replaced or verdict == "undecided":
        where = identify(place)
        event = Event(
            time=time.time(),
            kind="path",
            op="step",
            contract=", ".join(sorted({subject.contract for subject, _ in found})),
            plan=settle.plan_id(where.kind),
            device=where,
            site=settle.site(),
            schedule=", ".join(sorted({subject.schedule for subject, _ in found})),
            reference="the step again" + ("" if fixed else ", and by the believed schedules"),
            detail="; ".join(f"{n} tiles of {subject.op}" for subject, n in found)
            or "found by another rank",
            verdict=verdict,
            replaced=replaced,
            seconds=time.perf_counter() - began,
        )
        publish(event)
        settle.raise_alarm(event)
    return believed


def _verdict(first: Any, second: Any, believed: Any, passed: bool) -> Verdict:
    """Whose fault it was; `passed`: the second run's path was right."""
    if results.same(first, believed):
        return "path" if results.same(second, believed) else "transient"
    if results.same(second, believed):
        return "transient" if passed else "schedule"
    # Where the first two agree, the path says that they are wrong, and so does the simplest
    # schedule.
    return "schedule" if results.same(first, second) else "undecided"


def flagged(device: Any = None) -> list[tuple[tickets.Subject, int]]:
    """Which kernels have found how many wrong tiles on a device since the last time. It waits for
    the device: for the end of a step."""
    return tickets.take(_device(device))


def _device(device: Any) -> torch.device:
    if device is None:
        on_gpu = torch.cuda.is_available()
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        place = None
    if place is None or place.type not in ("cpu", "cuda"):
        raise SettingError(f"guard: device={device!r}: kernels are checked on cpu and cuda")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"guard: device={device!r}: torch sees no GPU here")
    if place.type == "cuda" and place.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return place
