"""Receipts of nobody's requests, and ways to damage a file of them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from samebits.guard.receipts import Identity, Receipt, Recorder
from samebits.guard.receipts.record import address, encode


def identity(**changes: object) -> Identity:
    fields = {
        "model": {"class": "Tiny", "config": "0" * 64}, "source": "", "weights": "1" * 64,
        "manifest": "", "plan": "2" * 16, "contracts": {"linear 4x4 fp32": "abc"},
        "texts": {"abc": "samebits 1 linear\n"}, "device": {"class": "cpu", "serial": "s"},
        "libraries": {"torch": "2"}, "engine": "transformers", "places": ("layers.0",),
    }  # fmt: skip
    return Identity(**(fields | changes))  # type: ignore[arg-type]


BODY = encode(identity())
NAME = address(BODY)


def receipt(number: int, **changes: object) -> Receipt:
    fields = {
        "request": f"r{number}", "time": 1_700_000_000_000_000_000 + number, "identity": NAME,
        "input": [1, 2, number], "output": [3, 4], "logprobs": [0xBF800000, 1], "sums": [-5],
        "covered": [(0, 4)], "seed": number, "sampling": {"temperature": 0.7},
    }  # fmt: skip
    return Receipt(**(fields | changes))  # type: ignore[arg-type]


def fill(recorder: Recorder, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        recorder.add(receipt(number), {NAME: BODY})


def tamper(path: Path, *statements: str) -> None:
    """Edits the database as somebody would who knows SQLite."""
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER IF EXISTS records_stay")
    db.execute("DROP TRIGGER IF EXISTS records_remain")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()
