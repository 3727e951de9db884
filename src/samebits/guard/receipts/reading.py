"""Reading ledgers: a database, or its export as lines of JSON.

The export has one value a line, in this order: ``{"header": …}``; each record as ``{"sequence": n,
"hash": …, "record": …}``, before it the objects that it is the first to name as ``{"object": name,
"value": …}`` (JSON as it is, other bytes in base 64 under "data"); and ``{"head": …}`` at the end.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from samebits.errors import ReceiptError
from samebits.files import RECEIPTS, it_is
from samebits.guard.receipts.ledger import ERRORS, check_schema, explained, read_head, read_header
from samebits.guard.receipts.record import (
    SCHEMA,
    UNREADABLE,
    Head,
    Header,
    Identity,
    Receipt,
    Record,
    address,
    decode,
    encode,
    first_link,
)

_MAGIC = b"SQLite format 3\0"
#: Bytes that are read to tell what another file is, such as a model's weights: a header is shorter.
_LOOK = 1 << 24
Row = tuple[int, bytes, bytes]
"""Sequence, hash and body of a record."""


class Source(Protocol):
    """A ledger that can be read.

    Attributes:
        start: h[0] of the chain.
    """

    header: Header
    start: bytes

    def rows(self, first: int = 1) -> Iterator[Row]:
        """The records from `first` on, in their order."""

    def head(self) -> Head | None:
        """The head as it is written; None where it is missing."""

    def object(self, name: str) -> bytes | None:
        """The bytes of an object."""


class Database:
    """A ledger's database, opened for reading only; writers are not disturbed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        wal = path.with_name(path.name + "-wal")
        # A database without a log can be read where nothing may be written, e.g. from an archive.
        still = not wal.exists() or wal.stat().st_size == 0
        mode = "immutable=1" if still and not _writable(path.parent) else "mode=ro"
        with self._errors():
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None
            )
            self._db.text_factory = bytes
            self.header, self.start = read_header(self._db, path)
            self._db.execute("BEGIN")  # one snapshot, however long it takes to read

    def rows(self, first: int = 1) -> Iterator[Row]:
        with self._errors():
            for sequence, hash, body in self._db.execute(
                "SELECT sequence, hash, body FROM records WHERE sequence >= ? ORDER BY sequence",
                (first,),
            ):
                yield sequence, _stored(hash), _stored(body)

    def head(self) -> Head | None:
        with self._errors():
            if self._db.execute("SELECT 1 FROM head").fetchone() is None:
                return None
            return read_head(self._db, self.path)

    def object(self, name: str) -> bytes | None:
        with self._errors():
            row = self._db.execute("SELECT body FROM objects WHERE name = ?", (name,)).fetchone()
        return _stored(row[0]) if row else None

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except ERRORS as error:
            raise explained(self.path, error) from error


def _stored(value: Any) -> bytes:
    """What a column holds. SQLite takes any type in it; another one than ours has no right hash."""
    return value if isinstance(value, bytes) else repr(value).encode()


class _Line(msgspec.Struct, frozen=True):
    """One line of an export."""

    header: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    head: Head | msgspec.UnsetType = msgspec.UNSET
    sequence: int = 0
    hash: str = ""
    record: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    object: str = ""
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data: str = ""


class Lines:
    """An export as lines of JSON. It is read through once, from the start; objects stay in memory.

    A last line that is cut off counts as missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._objects: dict[str, bytes] = {}
        self._head: Head | None = None
        raw = self._first()
        try:
            self.header, self.start = msgspec.json.decode(raw, type=Header), first_link(raw)
        except UNREADABLE as error:
            raise ReceiptError(f"{path}: header: {error}") from None
        check_schema(self.header, path)

    def _first(self) -> bytes:
        """The header's bytes."""
        with _readable(self.path) as file:
            start = file.readline(_LOOK)
            try:
                header = msgspec.json.decode(start, type=_Line).header
            except UNREADABLE:
                header = msgspec.UNSET
            if header is msgspec.UNSET:
                kind = it_is(start + file.read(_LOOK), RECEIPTS)
                raise ReceiptError(f"{self.path}: this is no file of receipts{kind}")
        return bytes(header)

    def rows(self, first: int = 1) -> Iterator[Row]:
        for line in self._lines():
            if line.record is not msgspec.UNSET:
                if line.sequence >= first:
                    yield line.sequence, _decoded(bytes.fromhex, line.hash), bytes(line.record)
            elif line.object:
                value, data = line.value, line.data
                raw = _decoded(base64.b64decode, data) if value is msgspec.UNSET else bytes(value)
                self._objects[line.object] = raw
            elif line.head is not msgspec.UNSET:
                self._head = line.head

    def head(self) -> Head | None:
        """Known once `rows` was read to its end."""
        return self._head

    def object(self, name: str) -> bytes | None:
        return self._objects.get(name)

    def close(self) -> None:
        """Nothing is open between calls."""

    def _lines(self) -> Iterator[_Line]:
        decoder = msgspec.json.Decoder(_Line)
        number = 0
        with _readable(self.path) as file:
            try:
                for line in file:
                    number += 1
                    yield decoder.decode(line)
            except UNREADABLE as error:
                if line.endswith(b"\n"):
                    raise ReceiptError(f"{self.path}, line {number}: {error}") from None


def _decoded(decode: Callable[[str], bytes], text: str) -> bytes:
    """Bytes from their text; an edited one that is none stands for itself, with no right hash."""
    try:
        return decode(text)
    except ValueError:
        return text.encode()


def open_ledger(path: str | Path) -> Database | Lines:
    """A ledger for reading, whichever of the two forms it has.

    Raises:
        ReceiptError: it cannot be read, or is no ledger.
    """
    path = Path(path)
    with _readable(path) as file:
        magic = file.read(len(_MAGIC))
    return Database(path) if magic == _MAGIC else Lines(path)


def find(source: Source, which: str) -> Row:
    """The record with a number, the last one of a request with that name, or the last request's
    ("last").

    Raises:
        ReceiptError: there is none.
    """
    found = row = None
    # As in a body: text in quotation marks, with what JSON escapes.
    inside = json.dumps(which, ensure_ascii=False)[1:-1].encode(errors="replace")
    for row in source.rows():
        if str(row[0]) == which:
            return row
        if which == "last" and b'"kind":"request"' in row[2]:
            found = row
        if inside in row[2]:
            with suppress(ReceiptError):  # a damaged record is nobody's
                if getattr(_record(row[0], row[2]), "request", None) == which:
                    found = row
    if found is None:
        raise ReceiptError(_absent(which, 0 if row is None else row[0]))
    return found


def _absent(which: str, last: int) -> str:
    """Why there is no such record in a ledger that ends in a record `last`."""
    if last == 0:
        return "the file holds no record yet"
    if which.isdecimal() and len(which) <= len(str(last)) and 0 < int(which) <= last:
        return f"record {int(which)} is missing: see `samebits receipts verify`"
    what = "none of them is a request"
    if which != "last":
        what = f"{which!r} is none of these numbers, and no name of a request"
    return f"the records of this file have the numbers 1 to {last}: {what}"


def receipt_of(row: Row) -> Receipt:
    """The receipt in a record.

    Raises:
        ReceiptError: the record is something else, or of another schema.
    """
    record = _record(row[0], row[2])
    if not isinstance(record, Receipt):
        raise ReceiptError(f"record {row[0]} is no request's receipt")
    if record.schema != SCHEMA:
        raise ReceiptError(
            f"record {row[0]}: schema: it has {record.schema}, and this release reads {SCHEMA}"
        )
    return record


def _record(sequence: int, body: bytes) -> Record:
    try:
        return decode(body)
    except UNREADABLE as error:
        raise ReceiptError(f"record {sequence}: {error}") from None


def export(source: Database | Lines, write: Callable[[bytes], object]) -> int:
    """Writes a ledger as lines of JSON; returns the number of records.

    Raises:
        ReceiptError: the ledger cannot be read, a record is none, or an object is missing.
    """
    write(b'{"header":' + encode(source.header) + b"}\n")
    known: set[str] = set()
    count = 0
    for sequence, hash, body in source.rows():
        for name in _objects_of(source, sequence, body, known):
            known.add(name)
            write(_object(source, name))
        line = b'{"hash":"%s","record":%s,"sequence":%d}\n'
        write(line % (hash.hex().encode(), body, sequence))
        count += 1
    head = source.head()
    if head is not None:
        write(b'{"head":' + encode(head) + b"}\n")
    return count


def _object(source: Source, name: str) -> bytes:
    raw = source.object(name)
    if raw is None:
        raise ReceiptError(f"object {name} is missing")
    value = b'"value":' + raw if is_canonical(raw) else b'"data":' + encode(raw)
    return b'{"object":"%s",%s}\n' % (name.encode(), value)


def is_canonical(raw: bytes) -> bool:
    """Whether bytes are JSON of one line, so that they may stand in an export as they are."""
    if raw[:1] != b"{" or b"\n" in raw:
        return False
    try:
        msgspec.json.decode(raw)
    except UNREADABLE:
        return False
    return True


def _objects_of(source: Source, sequence: int, body: bytes, known: set[str]) -> Iterator[str]:
    """Names of the objects that a record needs and that are not known."""
    record = _record(sequence, body)
    if not isinstance(record, Receipt):
        return
    if record.identity not in known:
        yield record.identity
        manifest = identity_of(source, record).manifest
        if manifest and manifest not in known:
            yield manifest
    yield from (name for name in record.audit if name not in known)


def identity_of(source: Source, receipt: Receipt) -> Identity:
    """What computed a request.

    Raises:
        ReceiptError: the object is missing, was altered, or is no identity of this schema.
    """
    raw = source.object(receipt.identity)
    if raw is None or address(raw) != receipt.identity:
        state = "missing" if raw is None else "altered"
        raise ReceiptError(f"identity: object {receipt.identity[:12]}… is {state}")
    try:
        return msgspec.json.decode(raw, type=Identity)
    except UNREADABLE as error:
        raise ReceiptError(f"identity: object {receipt.identity[:12]}…: {error}") from None


@contextmanager
def _readable(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ReceiptError(f"{path}: {error.strerror or error}") from None


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK)
