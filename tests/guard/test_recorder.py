"""Writing: crashes, many writers, full disks, locked and read-only files, forks."""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import receipt_samples as samples

import samebits
from samebits.errors import ReceiptError, SettingError
from samebits.guard import Device, Event, publish
from samebits.guard.receipts import Gap, Incident, Receipt, Recorder, active, verify
from samebits.guard.receipts.reading import open_ledger
from samebits.guard.receipts.record import decode

HERE = Path(__file__).parent

ENDLESS = """
import sys, itertools
sys.path.insert(0, sys.argv[2])
import receipt_samples as samples
from samebits.guard.receipts import Recorder
recorder = Recorder(sys.argv[1], interval=0.001)
for n in itertools.count(1):
    recorder.add(samples.receipt(n), {samples.NAME: samples.BODY})
    if n % 50 == 0:
        recorder.flush()
        print(n, flush=True)
"""

LIMITED = """
import resource, signal, sys
sys.path.insert(0, sys.argv[2])
import receipt_samples as samples
from samebits.errors import ReceiptError
from samebits.guard.receipts import Recorder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recorder = Recorder(sys.argv[1], on_error="stop", timeout=2)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
written = 0
try:
    for n in range(1, 100_000):
        recorder.add(samples.receipt(n), {samples.NAME: samples.BODY})
        if n % 20 == 0:
            recorder.flush()
            written = n
except ReceiptError as error:
    print(written, str(error), flush=True)
"""


def records(path: Path) -> list[Receipt | Gap]:
    source = open_ledger(path)
    found = [decode(body) for _, _, body in source.rows()]
    source.close()
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("after", [0.2, 0.5])
def test_a_writer_killed_in_the_middle(tmp_path: Path, after: float) -> None:
    path = tmp_path / "r.sqlite"
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(path), str(HERE)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    promised = int(process.stdout.readline())
    time.sleep(after)
    process.kill()
    promised = max([promised, *map(int, process.stdout.read().split())])
    process.wait()
    found = verify(path)
    assert found.whole and found.records >= promised
    with Recorder(path) as recorder:  # and the chain goes on
        samples.fill(recorder, 3)
    assert verify(path).records == found.records + 3 and verify(path).whole


def _write(path: Path, first: int, count: int) -> None:
    with Recorder(path, interval=0.0005, durability="process") as recorder:
        for number in range(first, first + count):
            recorder.add(samples.receipt(number), {samples.NAME: samples.BODY})
            if number % 7 == 0:
                recorder.flush()


def test_many_processes_write_one_file(tmp_path: Path) -> None:
    path, count = tmp_path / "r.sqlite", 120
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(path, 1000 * i, count)) for i in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(300)
        assert writer.exitcode == 0
    assert verify(path).whole
    seeds = [r.seed for r in records(path) if isinstance(r, Receipt)]
    assert len(seeds) == len(set(seeds)) == 3 * count
    for i in range(3):  # each writer's in its own order
        own = [s for s in seeds if s is not None and s // 1000 == i]
        assert own == list(range(1000 * i, 1000 * i + count))


def test_many_threads_write_with_one_recorder(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with Recorder(path) as recorder:
        threads = [
            threading.Thread(target=samples.fill, args=(recorder, 100, 1000 * i)) for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert verify(path).whole and verify(path).records == 400


def test_a_forked_child_opens_the_file_anew(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with Recorder(path) as recorder:
        samples.fill(recorder, 10)
        recorder.flush()
        child = os.fork()
        if child == 0:
            try:
                samples.fill(recorder, 10, 100)
                recorder.flush()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        samples.fill(recorder, 10, 200)
    assert verify(path).whole and verify(path).records == 30


def test_a_file_that_cannot_grow_stops_serving(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), str(HERE)], capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    promised, _, message = done.stdout.partition(" ")
    assert "disk" in message, message
    found = verify(path)
    assert found.whole and found.records >= int(promised) > 0
    with Recorder(path) as recorder:
        samples.fill(recorder, 1)
    assert verify(path).whole


def _pages(recorder: Recorder, count: int) -> None:
    """Limits the size of a recorder's database, as a full disk would."""
    ledger = recorder._ledger
    assert ledger is not None
    recorder.flush()
    ledger._db.execute(f"PRAGMA max_page_count = {count}")


def _until(condition: object, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_full_disk_stops_serving(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    recorder = Recorder(path, on_error="stop")
    samples.fill(recorder, 5)
    _pages(recorder, 1)
    with pytest.raises(ReceiptError, match="full; free some space"):
        samples.fill(recorder, 3000, 6)
        recorder.flush()
    with pytest.raises(ReceiptError, match="full"):
        recorder.add(samples.receipt(1))
    with pytest.raises(ReceiptError, match="full"):
        recorder.close()
    assert verify(path).whole and verify(path).records >= 5


def test_a_full_disk_does_not_stop_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.sqlite"
    with (
        caplog.at_level(logging.ERROR, "samebits.guard"),
        Recorder(path, on_error="continue", backlog=3000) as recorder,
    ):
        samples.fill(recorder, 5)
        _pages(recorder, 1)
        samples.fill(recorder, 3000, 6)
        _until(lambda: recorder.counters.failures)
        recorder.flush()  # does not wait for the disk
        samples.fill(recorder, 700, 4000)
        lost = recorder.counters.lost
        assert 0 < lost <= 705 and verify(path).whole
        assert "free some space" in caplog.text
        assert recorder._ledger is not None
        recorder._ledger._db.execute("PRAGMA max_page_count = 1000000")
        _until(lambda: not recorder.waiting)
        samples.fill(recorder, 2, 9000)
    found = records(path)
    assert verify(path).whole and verify(path).lost == lost
    gaps = [r for r in found if isinstance(r, Gap)]
    assert sum(g.lost for g in gaps) == lost and "full" in gaps[0].reason
    assert len(found) - len(gaps) == 5 + 3000 + 700 + 2 - lost


def test_a_locked_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with Recorder(path) as recorder:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        samples.fill(recorder, 10)
        threading.Timer(0.3, lambda: other.execute("ROLLBACK")).start()
        recorder.flush()
        other.close()
    assert verify(path).whole and verify(path).records == 10


@pytest.mark.parametrize("on_error", ["stop", "continue"])
def test_a_file_that_stays_locked(tmp_path: Path, on_error: str) -> None:
    path = tmp_path / "r.sqlite"
    recorder = Recorder(path, on_error=on_error, timeout=0.1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ReceiptError, match="locked; another process holds"):
        Recorder(path, timeout=0.1)
    samples.fill(recorder, 10)
    if on_error == "stop":
        with pytest.raises(ReceiptError, match="locked"):
            recorder.flush()
        with pytest.raises(ReceiptError, match="locked"):
            recorder.close()
    else:
        _until(lambda: recorder.counters.failures)
        other.execute("ROLLBACK")
        recorder.close()
    other.close()
    assert verify(path).whole and verify(path).records == (0 if on_error == "stop" else 10)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ReceiptError, match="unable to open"):
        Recorder(tmp_path / "r.sqlite")


def test_a_read_only_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.sqlite"
    with Recorder(path) as recorder:
        samples.fill(recorder, 3)
    stock = sqlite3.connect

    def read_only(file: object, **options: object) -> sqlite3.Connection:
        return stock(f"file:{file}?mode=ro", uri=True, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.raises(ReceiptError, match="readonly database; the file or its folder cannot"):
        Recorder(path)
    monkeypatch.undo()
    assert verify(path).records == 3
    with pytest.raises(ReceiptError, match="unable to open"):
        Recorder(tmp_path / "absent" / "r.sqlite")


def test_backpressure(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with Recorder(path, backlog=4, interval=0) as recorder:
        samples.fill(recorder, 200)
    assert verify(path).records == 200
    recorder = Recorder(path, backlog=4, timeout=0.2)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ReceiptError):
        samples.fill(recorder, 50)
    with pytest.raises(ReceiptError, match="locked"):
        recorder.close()
    other.close()


def test_the_recorder_in_force(tmp_path: Path) -> None:
    assert active() is None
    with samebits.receipts(tmp_path / "a.sqlite") as recorder:
        assert active() is recorder
        with pytest.raises(SettingError, match="already kept"):
            samebits.receipts(tmp_path / "b.sqlite")
    assert active() is None
    recorder.close()
    with pytest.raises(ReceiptError, match="closed"):
        recorder.add(samples.receipt(1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"on_error": "x"},
        {"durability": "x"},
        {"sums": "x"},
        {"audit": 2},
        {"audit": "1"},
        {"backlog": 0},
        {"backlog": 1.5},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"interval": float("inf")},
        {"interval": "1"},
        {"text": True},
    ],
)
def test_settings_that_are_not_understood(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError, match=f"{next(iter(wrong))}="):
        samebits.receipts(tmp_path / "r.sqlite", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "r.sqlite").exists()


def test_text_is_kept_only_if_asked_for(tmp_path: Path) -> None:
    for text, wanted in ((None, None), (lambda ids: f"{len(ids)} words", "3 words")):
        path = tmp_path / str(wanted)
        with Recorder(path, text=text) as recorder:
            samples.fill(recorder, 1)
        (found,) = records(path)
        assert isinstance(found, Receipt) and found.text == wanted


def test_an_object_under_a_wrong_name(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r.sqlite") as recorder, pytest.raises(ReceiptError, match="object"):
        recorder.add(samples.receipt(1), {"0" * 64: b"{}"})


def test_what_the_guard_catches_is_in_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    event = Event(
        time=1.7e9, kind="bytes", op="linear", contract="abc", plan="", schedule="s",
        device=Device("cpu", "a processor"), site=None, reference="r", detail="1 of 4",
    )  # fmt: skip
    with Recorder(path):
        publish(event)
    publish(event)
    (found,) = records(path)
    assert isinstance(found, Incident) and found.event["op"] == "linear"
    assert verify(path).whole


def test_resources() -> None:
    """The limits of this file's tests are those of child processes only."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert signal.getsignal(signal.SIGXFSZ) is not None
