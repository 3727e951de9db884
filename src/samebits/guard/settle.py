"""Settles a mismatch: the call is computed again, the majority of three decides, the result is
replaced in place, and what happened is published."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch

import samebits
from samebits.errors import DeviceError, DTypeError, GuardError, PlanError
from samebits.guard import results
from samebits.guard.devices import Device, identify
from samebits.guard.events import Event, Kind, Verdict, counts, publish
from samebits.guard.points import Again, Call
from samebits.plan import planner

_log = logging.getLogger("samebits.guard")
_OURS = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (torch, samebits))

Alarm = Callable[[Device, list[Event]], None]


class Rules(msgspec.Struct):
    """What happens to mismatches.

    Attributes:
        most: events on one device from which on it is not trusted any more.
        alarm: called then with the device and its events, instead of raising `GuardError`.
        dumps: directory for operands and results, or None for none.
    """

    most: int = 3
    alarm: Alarm | None = None
    dumps: str | None = None


rules = Rules()
_events: defaultdict[str, list[Event]] = defaultdict(list)
_dump_numbers = count()


def forget() -> None:
    """Forgets the events of all devices."""
    _events.clear()


def settle(call: Call, kind: Kind, detail: str, second: tuple[Again, Any] | None) -> None:
    """Decides what the result of `call` is, and makes it that.

    Three results count: the call's own, that of the believed schedule, and that of one more. Two
    that agree are right; if they are not the call's own, its memory is overwritten. The call's own
    schedule then runs once more, to tell a passing fault from one that stays.

    Args:
        second: another schedule and its result, where one is there already.

    Raises:
        GuardError: no two results agree, or the device has had too many events.
    """
    began = time.perf_counter()
    counts.mismatches += 1
    result = call.result
    others = [other for other in call.point.others(call) if other.whole]
    votes = [] if second is None else [second]
    for other in reversed(others):
        if len(votes) < 2 and all(other.name != vote[0].name for vote in votes):
            votes.append((other, other.run()))
    own = Again(call.point.schedule(call.arguments), call.run)
    while len(votes) < 2:  # there is no third schedule
        votes.append((own, own.run()))
    counts.replays += len(votes) - (second is not None)
    a, b = (vote[1] for vote in votes)
    before = results.copied(result)
    believed, verdict = _majority(result, a, b)
    if verdict == "transient":
        counts.replays += 1
        verdict = "transient" if results.same(call.run(), believed) else "schedule"
    replaced = believed is not None and believed is not result
    if replaced:
        results.replace(result, believed)
    event = _event(call, kind, detail, own.name, votes, verdict, replaced, began, before, believed)
    raise_alarm(event)


def _majority(own: Any, a: Any, b: Any) -> tuple[Any, Verdict]:
    """The result that two of three have (None if there is none), and whose fault it was."""
    if results.same(own, a):
        return own, "path" if results.same(own, b) else "reference"
    if results.same(own, b):
        return own, "reference"
    return (a, "transient") if results.same(a, b) else (None, "undecided")


def _event(
    call: Call,
    kind: Kind,
    detail: str,
    schedule: str,
    votes: list[tuple[Again, Any]],
    verdict: Verdict,
    replaced: bool,
    began: float,
    before: Any,
    believed: Any,
) -> Event:
    first = results.tensors(before)[0]
    device = identify(first.device)
    described, tensors = results.operands(call.arguments.items())
    plain = {k: v for k, v in call.arguments.items() if k not in tensors}
    event = Event(
        time=time.time(),
        kind=kind,
        op=call.point.op,
        contract=call.point.contract(call.arguments),
        plan=plan_id(device.kind),
        device=device,
        site=site(),
        schedule=schedule,
        reference=", ".join(again.name for again, _ in votes),
        operands=described,
        options=", ".join(f"{k}={v!r}" for k, v in plain.items()),
        dump=_dump(tensors, before, [result for _, result in votes]),
        detail=detail,
        verdict=verdict,
        replaced=replaced,
        seconds=time.perf_counter() - began,
    )
    publish(event)
    return event


def raise_alarm(event: Event) -> None:
    """What follows from an event, once it is published.

    Raises:
        GuardError: see `settle`.
    """
    if event.verdict == "undecided":
        raise GuardError(
            f"{event}. No two of three results agree: the result is not known. Take the device out "
            "of service and run the request elsewhere",
            event,
        )
    had = _events[f"{event.device.kind} {event.device}"]
    had.append(event)
    if len(had) < rules.most:
        return
    if rules.alarm is not None:
        rules.alarm(event.device, list(had))
        return
    raise GuardError(
        f"{len(had)} events on {event.device}, the last one: {event}. All results were put right, "
        "but the device is not to be trusted. Take it out of service, or set "
        "samebits.guard.configure(alarm=...)",
        event,
    )


def _dump(operands: dict[str, Any], before: Any, votes: list[Any]) -> str | None:
    """Writes what a call had and gave, where a directory for it is set: the file's name.

    A disk that is full is logged, and keeps neither the event nor the result.
    """
    if rules.dumps is None:
        return None
    path = Path(rules.dumps) / f"event-{os.getpid()}-{next(_dump_numbers)}.pt"
    what = {"operands": operands, "result": before, "votes": [results.tensors(v) for v in votes]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(what, path)
    except (OSError, RuntimeError) as error:  # torch says so of a disk without room
        _log.error("what failed a check cannot be written to %s: %s", path, error)
        return None
    return str(path)


def plan_id(kind: str) -> str:
    """The id of the plan in force on a device class; empty where there is none."""
    try:
        found = planner.in_force(kind)
    except (PlanError, DeviceError, DTypeError):
        return ""
    return found.id if found.entries else ""


def site() -> str | None:
    """``file:line`` of the innermost Python frame outside of torch and samebits."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
