"""Is a chain whole? What it shows, and what nobody could see, is in docs/receipts.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from samebits.errors import ReceiptError
from samebits.guard.receipts.keys import Key
from samebits.guard.receipts.reading import Database, Lines, Row, open_ledger
from samebits.guard.receipts.record import UNREADABLE, Head, address, link

#: Faults that are described one by one; a file with more is past describing.
MOST = 1000
#: Broken links among which places are compared.
FEW = 64


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        kind: "altered", "missing", "reordered", "truncated", "head", "object" or "key".
        sequence: the record; 0 for the file as a whole.
        text: what is wrong, for people.
    """

    kind: str
    sequence: int
    text: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` found.

    Attributes:
        records: read.
        lost: receipts that the ledger itself says could not be written.
        head: of the records that were read: compare it with one that was kept elsewhere.
        faults: empty for a chain that is whole.
        notes: what is remarkable and no fault: clocks that ran backwards, signatures not checked.
    """

    records: int
    lost: int
    head: Head
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


class _Peek(msgspec.Struct):
    """The fields of a body that the chain's check needs."""

    kind: str
    schema: int
    time: int
    identity: str = ""
    lost: int = 0
    audit: tuple[str, ...] = ()


class _Names(msgspec.Struct, frozen=True):
    """What an identity names."""

    manifest: str = ""


def verify(
    path: str | Path, *, heads: Sequence[str | Head] = (), key: Key | None = None
) -> Verdict:
    """Checks every link of a chain, its head, the objects that records name, and heads kept
    elsewhere.

    Args:
        path: a database, or its export.
        heads: each must lie on the chain, as "SEQUENCE:HASH" (what ``samebits receipts head``
            printed), or as a hash alone: the head must be the last one then.
        key: checks the head's signature.

    Raises:
        ReceiptError: the file cannot be read, is no ledger, or `heads` are not understood.
    """
    source = open_ledger(path)
    try:
        return _Check(source, [_parsed(head) for head in heads], key).run()
    finally:
        source.close()


def links(source: Database | Lines) -> Verdict:
    """Checks every link of an open ledger's chain, and its head; no object is read.

    That is one hash a record, where `verify` also reads the operands that are kept for audits.

    Raises:
        ReceiptError: the file cannot be read.
    """
    return _Check(source, [], None).run(objects=False)


def _parsed(head: str | Head) -> tuple[int | None, bytes]:
    found = re.fullmatch(r"(?:(\d+):)?([0-9a-f]{64})", str(head))
    if found is None:
        raise ReceiptError(f"head {head!s}: give SEQUENCE:HASH or HASH, as `receipts head` prints")
    return int(found[1]) if found[1] else None, bytes.fromhex(found[2])


class _Check:
    """One pass over a ledger."""

    def __init__(
        self, source: Database | Lines, heads: list[tuple[int | None, bytes]], key: Key | None
    ) -> None:
        self.source, self.heads, self.key = source, heads, key
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self.broken: list[tuple[bytes, Row]] = []  # the hash before, and the record
        self.wanted = {n for n, _ in heads if n is not None}
        self.at: dict[int, bytes] = {0: source.start}
        self.named: set[str] = set()
        self.identities: set[str] = set()
        self.lost = self.back = self.furthest = 0

    def run(self, *, objects: bool = True) -> Verdict:
        sequence, previous, count = 0, self.source.start, 0
        peek = msgspec.json.Decoder(_Peek)
        for n, stored, body in self.source.rows():
            count += 1
            if n != sequence + 1:
                self._gap(sequence, n)  # and no link to check
            elif link(previous, n, body) != stored:
                self.broken.append((previous, (n, stored, body)))
            if n in self.wanted:
                self.at[n] = stored
            self._look(n, body, peek)
            sequence, previous = n, stored
        self._describe()
        last = Head(sequence=sequence, hash=previous.hex())
        self._check_head(last)
        self._check_heads(last)
        if objects:
            self._check_objects()
        if self.back:
            self.notes.append(
                f"{self.back} records are earlier than one before them, by up to "
                f"{self.furthest / 1e9:.3f} s: several writers, or a clock that was set back. The "
                "order of the chain is that of writing"
            )
        return Verdict(
            records=count, lost=self.lost, head=last, faults=tuple(self.faults[:MOST]),
            notes=tuple(self.notes),
        )  # fmt: skip

    _latest = 0

    def _look(self, n: int, body: bytes, peek: msgspec.json.Decoder[_Peek]) -> None:
        """Notes what a body says about time, losses and objects."""
        try:
            found = peek.decode(body)
        except UNREADABLE as error:
            self._fault("altered", n, f"record {n} cannot be read: {error}")
            return
        if found.time < self._latest:
            self.back += 1
            self.furthest = max(self.furthest, self._latest - found.time)
        else:
            self._latest = found.time
        self.lost += found.lost
        if found.identity:
            self.identities.add(found.identity)
            if found.audit:
                self.named.update(found.audit)

    def _fault(self, kind: str, sequence: int, text: str) -> None:
        if len(self.faults) < MOST:
            self.faults.append(Fault(kind, sequence, text))

    def _gap(self, before: int, n: int) -> None:
        if n <= before:
            self._fault("reordered", n, f"record {n} stands behind record {before}")
        else:
            one = f"record {before + 1} is missing"
            several = f"records {before + 1} to {n - 1} are missing"
            self._fault("missing", before + 1, one if n == before + 2 else several)

    def _describe(self) -> None:
        """Says of each broken link whether its record changed places with another or was altered.

        A record that belongs to a place gives, behind the hash before that place, the hash that
        was written there, wherever that stands now.
        """
        few = self.broken if len(self.broken) <= FEW else []
        hashes = {stored for _, (_, stored, _) in few}
        moved = {}
        for before, (n, _, _) in few:
            for _, (other, _, body) in few:
                if other != n and link(before, n, body) in hashes:
                    moved[n] = other
        for _, (n, _, _) in self.broken:
            if n in moved:
                text = f"record {n} changed places: what was written there stands at {moved[n]}"
                self._fault("reordered", n, text)
            elif n - 1 not in moved:  # behind a moved record no link fits
                text = f"record {n}, or the hash before it, is not what was written"
                self._fault("altered", n, text)

    def _check_head(self, last: Head) -> None:
        try:
            head = self.source.head()
        except ReceiptError as error:
            self._fault("head", last.sequence, str(error))
            return
        if head is None:
            self._fault("truncated", last.sequence, "the end is missing: there is no head")
        elif head.sequence > last.sequence:
            self._fault(
                "truncated", last.sequence,
                f"the last record is {last.sequence}, and the head says {head.sequence}",
            )  # fmt: skip
        elif (head.sequence, head.hash) != (last.sequence, last.hash):
            self._fault("head", last.sequence, f"the head is {head}, and the records end in {last}")
        if head is not None and self.source.header.key:
            self._check_signature(head)

    def _check_signature(self, head: Head) -> None:
        wanted = self.source.header.key
        if self.key is None:
            self.notes.append(f"the head is signed with key {wanted}; not checked without --key")
        elif self.key.name != wanted:
            self._fault("key", 0, f"the file was signed with {wanted}, not {self.key.name}")
        elif not self.key.signed(
            self.source.header.ledger, head.sequence, bytes.fromhex(head.hash), head.signature
        ):
            self._fault("key", head.sequence, "the head's signature is not that of the key")

    def _check_heads(self, last: Head) -> None:
        for n, hash in self.heads:
            if n is None and hash.hex() != last.hash:
                self._fault("head", last.sequence, f"the chain ends in {last}, not in {hash.hex()}")
            elif n is not None and n > last.sequence:
                self._fault(
                    "truncated", last.sequence,
                    f"a head of {n} records is known, and the last is {last.sequence}",
                )  # fmt: skip
            elif n is not None and self.at.get(n) != hash:
                found = self.at.get(n)
                self._fault(
                    "head", n,
                    f"record {n} has the hash {found.hex() if found else 'of no record'}, and a "
                    f"head {hash.hex()} is known: the chain was rewritten, or is another one",
                )  # fmt: skip

    def _check_objects(self) -> None:
        manifests = {self._object(name, "identity") for name in sorted(self.identities)}
        for name in sorted(self.named | manifests - {""}):
            self._object(name, "object")

    def _object(self, name: str, what: str) -> str:
        """Checks an object; returns the name of the list of weights that it names, if any."""
        raw = self.source.object(name)
        if raw is None or address(raw) != name:
            state = "missing" if raw is None else "altered"
            self._fault("object", 0, f"{what} {name[:16]}… is {state}")
            return ""
        if what != "identity":
            return ""
        try:
            return msgspec.json.decode(raw, type=_Names).manifest
        except UNREADABLE as error:
            self._fault("object", 0, f"{what} {name[:16]}… cannot be read: {error}")
            return ""
