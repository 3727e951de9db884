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
from samebits.guard import observe, results, settle
from samebits.guard.devices import identify
from samebits.guard.events import Event, Verdict, counts, publish

T = TypeVar("T")


def step(run: Callable[[], T], *, undo: Callable[[], None] | None = None, device: Any = None) -> T:
    """Runs one step, and again if kernels found that they took another path than the contract's.

    Then the step runs by the schedules that are believed, and once more by its own; two of three
    that agree are right. The last run is one of the two, so caches hold what belongs to the result.

    Args:
        run: computes the step; gives a tensor or a tuple of them. It is not a graph's replay: a
            captured step is replayed by running its function.
        undo: takes back what a run did besides, e.g. crops a KV cache that grew. A cache that is
            written by position needs none.
        device: where it computes; the current GPU if there is one.

    Returns:
        The result of `run` that is believed.

    Raises:
        GuardError: no two of three runs agree, or the device has had too many events.
    """
    result = run()
    place = _device(device)
    found = tickets.take(place)
    if not found:
        return result
    began = time.perf_counter()
    counts.mismatches += 1
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
    tickets.take(place)
    verdict: Verdict
    if results.same(first, believed):
        verdict = "path" if results.same(kept, believed) else "transient"
    elif results.same(kept, believed):
        verdict = "transient" if passed else "schedule"
    elif results.same(first, kept):
        # The path says that both are wrong, and the simplest schedule disagrees with both.
        verdict = "schedule"
    else:
        verdict = "undecided"
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
        reference="the believed schedules, and the step again",
        detail="; ".join(f"{n} tiles of {subject.op}" for subject, n in found),
        verdict=verdict,
        replaced=not results.same(first, believed),
        seconds=time.perf_counter() - began,
    )
    counts.seconds += event.seconds
    publish(event)
    settle.raise_alarm(event)
    return believed


def flagged(device: Any = None) -> list[tuple[tickets.Subject, int]]:
    """Which kernels have found how many wrong tiles on a device since the last time. It waits for
    the device: for the end of a step."""
    return tickets.take(_device(device))


def _device(device: Any) -> torch.device:
    if device is None:
        on_gpu = torch.cuda.is_available()
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    place = torch.device(device)
    if place.type == "cuda" and place.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return place
