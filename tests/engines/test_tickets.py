"""Tickets are made once, wherever that happens."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.engines import tickets

SUBJECT = tickets.Subject("linear", "0123", "split 4")


@pytest.fixture(autouse=True)
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "_tables", {})


def test_the_same_arguments_get_the_same_ticket() -> None:
    cpu = torch.device("cpu")
    first = tickets.ticket(cpu, SUBJECT, 0x80000001, 512)
    assert first.tolist() == [0x80000001 - (1 << 32), 0, 512, 0]
    first[1] += 3
    assert tickets.ticket(cpu, SUBJECT, 0x80000001, 512).data_ptr() == first.data_ptr()
    assert tickets.ticket(cpu, SUBJECT, 7).tolist() == [7, 0, 0, 0]
    assert tickets.take(cpu) == [(SUBJECT, 3)]
    assert tickets.take(cpu) == []


def test_more_kinds_than_a_block_holds_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is expected of them nor who was wrong; earlier ones stay where they are."""
    monkeypatch.setattr(tickets, "ROWS", 2)
    cpu, kinds = torch.device("cpu"), [tickets.Subject("linear", str(i), "") for i in range(5)]
    made = [tickets.ticket(cpu, kind, 10 + i) for i, kind in enumerate(kinds)]
    assert [row.tolist() for row in made] == [[10 + i, 0, 0, 0] for i in range(5)]
    assert len({row.data_ptr() for row in made}) == 5
    for i in (1, 4):
        made[i][1] += i
    assert tickets.take(cpu) == [(kinds[1], 1), (kinds[4], 4)]
    assert tickets.take(cpu) == []
    again = [tickets.ticket(cpu, kind, 10 + i).data_ptr() for i, kind in enumerate(kinds)]
    assert again == [row.data_ptr() for row in made]


def test_what_is_found_while_counts_are_read_is_told_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels on other streams add after the reading, too; 2^31 is no end."""
    cpu = torch.device("cpu")
    made, read = tickets.ticket(cpu, SUBJECT, 1), torch.Tensor.tolist
    made[1] = 2**31 - 1

    def reads(x: torch.Tensor) -> Any:
        found = read(x)
        made[1] += 2  # wraps round
        return found

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(torch.Tensor, "tolist", reads)
        assert tickets.take(cpu) == [(SUBJECT, 2**31 - 1)]
    assert tickets.take(cpu) == [(SUBJECT, 2)]
    assert tickets.take(cpu) == []


def test_a_thread_that_captures_leaves_the_capture_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The steps, in their order; that a driver takes them is tested on a GPU."""
    seen: list[str] = []
    modes = [0]

    def exchange(mode: Any) -> int:
        mode._obj.value, modes[0] = modes[0], mode._obj.value
        seen.append(f"mode {modes[0]}")
        return 0

    @contextlib.contextmanager
    def entered(_: Any) -> Iterator[None]:
        seen.append("another stream")
        yield
        seen.append("the stream before")

    stream = SimpleNamespace(synchronize=lambda: seen.append("waits"))
    driver = SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    with (
        pytest.raises(KeyError),
        tickets._outside_of_captures(torch.device("cuda", 0)),
    ):
        seen.append("works")
        raise KeyError
    assert seen == ["mode 2", "another stream", "works", "mode 0"]
    seen.clear()
    with tickets._outside_of_captures(torch.device("cuda", 0)):
        seen.append("works")
    assert seen == ["mode 2", "another stream", "works", "waits", "the stream before", "mode 0"]
