"""The bus: everybody hears, nobody can break it; devices say who they are."""

from __future__ import annotations

import logging

import msgspec
import pytest
import torch

from samebits.guard import Device, Event, identify, publish, subscribe

EVENT = Event(
    time=1.0,
    kind="path",
    op="linear",
    contract="0123456789ab",
    plan="",
    device=Device("cpu", "a processor"),
    site="model.py:3",
    schedule="avx512",
    reference="scalar",
    detail="3 tiles",
)


def test_subscribers_hear_events_until_they_leave() -> None:
    heard: list[Event] = []
    leave = subscribe(heard.append)
    publish(EVENT)
    leave()
    leave()
    publish(EVENT)
    assert heard == [EVENT]


def test_a_broken_subscriber_is_logged_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise OSError("disk full")

    leaves = [subscribe(broken), subscribe(heard.append)]
    try:
        with caplog.at_level(logging.ERROR, logger="samebits.guard"):
            publish(EVENT)
    finally:
        for leave in leaves:
            leave()
    assert heard == [EVENT]
    assert "disk full" in caplog.text


def test_the_log_record_carries_the_event(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="samebits.guard"):
        publish(EVENT)
    carried = caplog.records[0].samebits  # type: ignore[attr-defined]
    assert msgspec.convert(carried, Event) == EVENT
    assert "linear at model.py:3" in caplog.records[0].message


def test_events_survive_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(EVENT), type=Event) == EVENT


def test_the_processor_says_who_it_is() -> None:
    device = identify(torch.device("cpu"))
    assert device.kind == "cpu" and device.name and device.serial
    assert device.clock_mhz is None or 100 < device.clock_mhz < 20_000
