"""The file: one SQLite database that any number of processes may append to.

A batch is one transaction (``BEGIN IMMEDIATE``), which reads the head, chains its records to it and
writes both, so that writers never fork the chain and a reader sees whole batches or nothing. The
journal is a write-ahead log: a process that is killed in the middle leaves frames without a commit
mark, which SQLite ignores.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from samebits.errors import ReceiptError
from samebits.guard.receipts.keys import Key
from samebits.guard.receipts.record import (
    SCHEMA,
    UNREADABLE,
    Head,
    Header,
    encode,
    first_link,
    link,
)

#: What the file promises once an append has returned: with "power" SQLite waits for the disk at
#: each commit (synchronous=FULL), with "process" only at checkpoints (NORMAL). Both leave a valid
#: file behind in every case; the latter may lose the last batches when the machine loses power.
SYNCHRONOUS = {"power": "FULL", "process": "NORMAL"}

#: Bytes of a page: several records fit into one, so that little of it stays empty.
_PAGE = 16384
_TABLES = (
    "CREATE TABLE header (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL)",
    "CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL,"
    " hash BLOB NOT NULL, signature TEXT NOT NULL)",
    "CREATE TABLE records (sequence INTEGER PRIMARY KEY, hash BLOB NOT NULL, body TEXT NOT NULL)",
    "CREATE TABLE objects (name TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TRIGGER records_stay BEFORE UPDATE ON records"
    " BEGIN SELECT RAISE(ABORT, 'receipts are only appended'); END",
    "CREATE TRIGGER records_remain BEFORE DELETE ON records"
    " BEGIN SELECT RAISE(ABORT, 'receipts are only appended'); END",
)
_REMEDIES = {
    "locked": "another process holds the file: raise timeout=, or end it",
    "readonly": "the file or its folder cannot be written to: change its permissions",
    "full": "free some space on its disk",
    "unable to open": "its folder must exist and be writable: a journal lies beside it",
    "disk I/O": "look at the disk; a network file system cannot hold a write-ahead log",
    "not a database": "give a new path; this file is something else",
    "codec": "the file is damaged: keep it, and start a new one",
    "malformed": "the file is damaged: keep it, run `samebits receipts verify`, start a new one",
}


#: SQLite's errors; some of a damaged file quote what is no text.
ERRORS = (sqlite3.Error, UnicodeDecodeError)


def explained(path: str | Path, error: Exception) -> ReceiptError:
    """One of `ERRORS` with the file and a remedy."""
    text = str(error)
    remedy = next((r for word, r in _REMEDIES.items() if word in text), "")
    return ReceiptError(f"receipts {path}: {text}{'; ' + remedy if remedy else ''}")


class Ledger:
    """A file of receipts, open for appending. Not to be shared between threads or after a fork.

    Args:
        path: the file; it is made if it is not there.
        durability: "power" or "process", see `SYNCHRONOUS`.
        key: signs the head of every batch.
        timeout: seconds to wait for other writers.

    Raises:
        ReceiptError: the file cannot be opened or written to, is no ledger of this schema, has
            another key, or does not end in what its head says.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: str = "power",
        key: Key | None = None,
        timeout: float = 30.0,
    ) -> None:
        if durability not in SYNCHRONOUS:
            raise ReceiptError(f"durability={durability!r}: use one of {', '.join(SYNCHRONOUS)}")
        self.path, self.key = Path(path), key
        with self._errors():
            self._db = sqlite3.connect(
                self.path, timeout=timeout, isolation_level=None, check_same_thread=False
            )
        try:
            with self._errors():
                self._db.text_factory = bytes
                self._db.execute(f"PRAGMA page_size = {_PAGE}")  # of a new file
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
                with self._transaction():
                    if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                        self._create()
                    self.header, self._start = read_header(self._db, self.path)
                    self._check_key()
                    self._check_end()
                    self._db.execute("UPDATE head SET one = 1")  # may this process write?
        except BaseException:
            self._db.close()
            raise
        self._last_object = ""

    def append(self, bodies: Sequence[bytes], objects: Iterable[tuple[str, bytes]] = ()) -> Head:
        """Writes records, and the objects that they name, as one transaction.

        Returns:
            The chain's head behind them.

        Raises:
            ReceiptError: nothing was written.
        """
        new = {name: body for name, body in objects if name != self._last_object}
        with self._errors(), self._transaction():
            sequence, previous = self._head()
            rows = []
            for body in bodies:
                sequence += 1
                previous = link(previous, sequence, body)
                rows.append((sequence, previous, body.decode()))
            signature = self.key.sign(self.header.ledger, sequence, previous) if self.key else ""
            self._db.executemany("INSERT OR IGNORE INTO objects VALUES (?, ?)", new.items())
            self._db.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)
            self._db.execute(
                "UPDATE head SET sequence = ?, hash = ?, signature = ?",
                (sequence, previous, signature),
            )
        self._last_object = next(reversed(new), self._last_object)
        return Head(sequence=sequence, hash=previous.hex(), signature=signature)

    def head(self) -> Head:
        """Where the chain ends now."""
        with self._errors():
            return read_head(self._db, self.path)

    def close(self) -> None:
        """Closes the file; the last one to do so takes the log into the database."""
        with self._errors():
            self._db.close()

    def _create(self) -> None:
        header = encode(
            Header(
                schema=SCHEMA, ledger=secrets.token_hex(16), created=time.time_ns(),
                key=self.key.name if self.key else "",
            )
        )  # fmt: skip
        for statement in _TABLES:
            self._db.execute(statement)
        start = first_link(header)
        ledger = msgspec.json.decode(header, type=Header).ledger
        signature = self.key.sign(ledger, 0, start) if self.key else ""
        self._db.execute("INSERT INTO header VALUES (1, ?)", (header.decode(),))
        self._db.execute("INSERT INTO head VALUES (1, 0, ?, ?)", (start, signature))

    def _check_key(self) -> None:
        mine = self.key.name if self.key else ""
        if mine != self.header.key:
            raise ReceiptError(
                f"receipts {self.path}: key: the file's heads are signed with "
                f"{self.header.key or 'no key'}, and this writer has {mine or 'none'}. Give all "
                "writers of a file the same key"
            )

    def _check_end(self) -> None:
        """The last record is the one that the head names; `verify` looks at all of them."""
        sequence, hash = self._head()
        last = self._db.execute("SELECT max(sequence) FROM records").fetchone()[0] or 0
        rows = self._db.execute(
            "SELECT hash, body FROM records WHERE sequence > ? ORDER BY sequence", (last - 2,)
        ).fetchall()
        good = last == sequence
        if good and rows:
            before = self._start if last == 1 else rows[0][0]
            good = rows[-1][0] == hash == link(before, last, rows[-1][1])
        if not good:
            raise ReceiptError(
                f"receipts {self.path}: the last record is {last}, and the head says {sequence}:"
                f"{hash.hex()[:12]}…: the file was cut or edited. Keep it, run `samebits receipts "
                "verify`, and go on in a new file"
            )

    def _head(self) -> tuple[int, bytes]:
        head = read_head(self._db, self.path)
        hash = bytes.fromhex(head.hash)
        if self.key and not self.key.signed(
            self.header.ledger, head.sequence, hash, head.signature
        ):
            raise ReceiptError(
                f"receipts {self.path}: the head's signature is not that of the file's key: it was "
                "edited. Keep the file, and go on in a new one"
            )
        return head.sequence, hash

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except ERRORS as error:
            raise explained(self.path, error) from error


def read_header(db: sqlite3.Connection, path: str | Path) -> tuple[Header, bytes]:
    """The header of an open database (`text_factory` bytes), and the first link of its chain.

    Raises:
        ReceiptError: it is no ledger, or of another schema.
    """
    try:
        found = db.execute("SELECT body FROM header").fetchone()
        header = msgspec.json.decode(found[0], type=Header)
    except (sqlite3.OperationalError, TypeError, *UNREADABLE) as error:
        if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
            raise
        raise ReceiptError(f"{path}: this is no file of receipts") from None
    check_schema(header, path)
    return header, first_link(found[0])


def check_schema(header: Header, path: str | Path) -> None:
    """Refuses a ledger of another schema.

    Raises:
        ReceiptError: it has one.
    """
    if header.schema != SCHEMA:
        raise ReceiptError(
            f"{path}: schema: the file has {header.schema}, and this release reads {SCHEMA}"
        )


def read_head(db: sqlite3.Connection, path: str | Path) -> Head:
    """The head of an open database.

    Raises:
        ReceiptError: there is none, or what is there is no head.
    """
    found = db.execute("SELECT sequence, hash, signature FROM head").fetchone()
    if found is None or [type(x) for x in found] != [int, bytes, bytes]:
        state = "missing" if found is None else "no head"
        raise ReceiptError(f"{path}: head: {state}: the file was edited or damaged")
    sequence, hash, signature = found
    return Head(sequence=sequence, hash=hash.hex(), signature=signature.decode(errors="replace"))
