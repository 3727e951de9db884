"""The chain: every kind of damage is found, named, and nothing else is reported."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sqlite3
from pathlib import Path

import pytest
import receipt_samples as samples

import samebits
from samebits.errors import ReceiptError
from samebits.guard.receipts import Head, Recorder, verify
from samebits.guard.receipts.keys import Key
from samebits.guard.receipts.ledger import Ledger
from samebits.guard.receipts.reading import export, identity_of, open_ledger
from samebits.guard.receipts.record import address, encode, first_link, link

COUNT = 20


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "r.sqlite"
    with Recorder(path) as recorder:
        samples.fill(recorder, COUNT)
    return path


def kinds(path: Path, **options: object) -> list[tuple[str, int]]:
    return [(f.kind, f.sequence) for f in verify(path, **options).faults]  # type: ignore[arg-type]


def exported(path: Path) -> Path:
    out = path.with_suffix(".jsonl")
    source = open_ledger(path)
    with out.open("wb") as file:
        assert export(source, file.write) == COUNT
    source.close()
    return out


def test_a_whole_chain(ledger: Path) -> None:
    for path in (ledger, exported(ledger)):
        found = verify(path)
        assert found.whole and not found.notes
        assert found.records == COUNT and found.head.sequence == COUNT


def test_the_hashes_are_those_that_the_documentation_defines(ledger: Path) -> None:
    db = sqlite3.connect(ledger)
    (header,) = db.execute("SELECT body FROM header").fetchone()
    previous = hashlib.sha256(b"samebits receipts 1\n" + header.encode()).digest()
    assert previous == first_link(header.encode())
    for n, stored, body in db.execute("SELECT * FROM records ORDER BY sequence"):
        previous = hashlib.sha256(previous + n.to_bytes(8, "big") + body.encode()).digest()
        assert stored == previous
        assert json.dumps(json.loads(body), separators=(",", ":"), sort_keys=True) == body
    db.close()


def test_records_are_only_appended(ledger: Path) -> None:
    db = sqlite3.connect(ledger)
    for statement in ("UPDATE records SET body = '{}'", "DELETE FROM records"):
        with pytest.raises(sqlite3.IntegrityError, match="only appended"):
            db.execute(statement)
    db.close()


def test_an_altered_record_is_found(ledger: Path) -> None:
    samples.tamper(
        ledger, "UPDATE records SET body = replace(body, '\"seed\":7', '\"seed\":8') WHERE "
        "sequence = 7",
    )  # fmt: skip
    assert kinds(ledger) == [("altered", 7)]
    assert kinds(exported(ledger)) == [("altered", 7)]


def test_an_altered_record_with_its_hash_made_to_fit_is_found(ledger: Path) -> None:
    db = sqlite3.connect(ledger)
    (before,) = db.execute("SELECT hash FROM records WHERE sequence = 6").fetchone()
    (body,) = db.execute("SELECT body FROM records WHERE sequence = 7").fetchone()
    db.close()
    forged = body.replace('"seed":7', '"seed":8')
    fitting = link(before, 7, forged.encode()).hex()
    samples.tamper(
        ledger, f"UPDATE records SET body = '{forged}', hash = x'{fitting}' WHERE sequence = 7"
    )
    assert kinds(ledger) == [("altered", 8)]  # the next one follows from another record


@pytest.mark.parametrize("n", [1, 7, COUNT])
def test_one_bit_is_enough(ledger: Path, n: int) -> None:
    samples.tamper(
        ledger, f"UPDATE records SET body = replace(body, '\"output\":[3', '\"output\":[2') "
        f"WHERE sequence = {n}",
    )  # fmt: skip
    assert kinds(ledger)[0] == ("altered", n)


def test_a_missing_record_is_found(ledger: Path) -> None:
    samples.tamper(ledger, "DELETE FROM records WHERE sequence IN (5, 6)")
    assert kinds(ledger) == [("missing", 5)]
    assert "5 to 6" in verify(ledger).faults[0].text


def test_a_missing_record_whose_followers_moved_up_is_found(ledger: Path) -> None:
    samples.tamper(
        ledger, "DELETE FROM records WHERE sequence = 5",
        "UPDATE records SET sequence = sequence - 1 WHERE sequence > 5",
        f"UPDATE head SET sequence = {COUNT - 1}",
    )  # fmt: skip
    assert ("altered", 5) in kinds(ledger)


@pytest.mark.parametrize("columns", ["body", "body, hash"])
@pytest.mark.parametrize("pair", [(4, 5), (4, 11)])
def test_records_that_changed_places_are_found(
    ledger: Path, columns: str, pair: tuple[int, int]
) -> None:
    a, b = pair
    samples.tamper(
        ledger, f"CREATE TEMP TABLE t AS SELECT * FROM records WHERE sequence IN ({a}, {b})",
        *(f"UPDATE records SET ({columns}) = (SELECT {columns} FROM t WHERE t.sequence = {y}) "
          f"WHERE sequence = {x}" for x, y in ((a, b), (b, a))),
    )  # fmt: skip
    found = kinds(ledger)
    assert found and found[0][1] == a
    assert {k for k, _ in found} <= {"reordered", "altered"}
    assert ("reordered", a) in found


def test_a_cut_tail_is_found(ledger: Path) -> None:
    lines = exported(ledger).read_bytes().splitlines(keepends=True)
    samples.tamper(ledger, f"DELETE FROM records WHERE sequence > {COUNT - 3}")
    assert kinds(ledger) == [("truncated", COUNT - 3)]
    with pytest.raises(ReceiptError, match="cut or edited"):
        Recorder(ledger)
    short = ledger.with_name("short.jsonl")
    for cut in (b"".join(lines[:-1]), b"".join(lines)[:-9], b"".join(lines[:-3])):
        short.write_bytes(cut)
        assert [k for k, _ in kinds(short)] == ["truncated"]


def test_a_cut_tail_with_its_head_made_to_fit_needs_a_head_kept_elsewhere(ledger: Path) -> None:
    anchors = [verify(ledger).head]
    samples.tamper(
        ledger, "DELETE FROM records WHERE sequence > 12",
        "UPDATE head SET sequence = 12, hash = (SELECT hash FROM records WHERE sequence = 12)",
    )  # fmt: skip
    assert verify(ledger).whole  # what docs/receipts.md says that nobody can see in the file
    assert kinds(ledger, heads=anchors) == [("truncated", 12)]
    assert kinds(ledger, heads=[anchors[0].hash]) == [("head", 12)]


def test_a_chain_written_anew_needs_a_head_kept_elsewhere(ledger: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with Recorder(other) as recorder:
        samples.fill(recorder, COUNT + 5)
        middle = recorder.head()
    assert verify(other, heads=[middle]).whole
    assert kinds(ledger, heads=[middle]) == [("truncated", COUNT)]
    assert kinds(other, heads=[verify(ledger).head]) == [("head", COUNT)]


@pytest.mark.parametrize("head", ["", "5", "5:zz", "x:" + "0" * 64])
def test_a_head_that_is_none(ledger: Path, head: str) -> None:
    with pytest.raises(ReceiptError, match="SEQUENCE:HASH"):
        verify(ledger, heads=[head])


def test_an_edited_head_or_header_is_found(ledger: Path) -> None:
    samples.tamper(ledger, "UPDATE head SET hash = zeroblob(32)")
    assert kinds(ledger) == [("head", COUNT)]
    samples.tamper(
        ledger, "UPDATE header SET body = replace(body, '\"created\":1', '\"created\":2')"
    )
    assert kinds(ledger)[0] == ("altered", 1)


def test_objects_are_covered(ledger: Path) -> None:
    samples.tamper(ledger, "UPDATE objects SET body = replace(body, 'Tiny', 'Huge')")
    assert kinds(ledger) == [("object", 0)]
    samples.tamper(ledger, "DELETE FROM objects")
    assert "missing" in verify(ledger).faults[0].text


def test_a_clock_that_runs_backwards_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with Recorder(path) as recorder:
        for number in (5, 9, 2, 10):
            recorder.add(samples.receipt(number), {samples.NAME: samples.BODY})
    found = verify(path)
    assert found.whole and found.records == 4
    assert "1 records are earlier" in found.notes[0]


def test_signed_heads(tmp_path: Path) -> None:
    path, secret = tmp_path / "r.sqlite", tmp_path / "key"
    secret.write_bytes(b"0123456789abcdef")
    with samebits.receipts(path, key=secret) as recorder:
        samples.fill(recorder, COUNT)
    key, other = Key.read(secret), Key(b"another key of this length")
    assert verify(path, key=key).whole
    assert "not checked" in verify(path).notes[0]
    assert kinds(path, key=other) == [("key", 0)]
    samples.tamper(
        path, "DELETE FROM records WHERE sequence > 12",
        "UPDATE head SET sequence = 12, hash = (SELECT hash FROM records WHERE sequence = 12)",
    )  # fmt: skip
    assert kinds(path, key=key) == [("key", 12)]
    with pytest.raises(ReceiptError, match="signature"):
        Recorder(path, key=key)


def test_all_writers_of_a_file_have_its_key(tmp_path: Path) -> None:
    key = Key(b"0123456789abcdef")
    for first, second in ((key, None), (None, key), (key, Key(b"another key of this length"))):
        path = tmp_path / f"{id(first)}{id(second)}.sqlite"
        Recorder(path, key=first).close()
        with pytest.raises(ReceiptError, match="key: the file's heads are signed with"):
            Recorder(path, key=second)
    with pytest.raises(ReceiptError, match="at least 16"):
        Key(b"short")


def test_what_is_no_ledger(tmp_path: Path) -> None:
    text, empty, other = tmp_path / "a.txt", tmp_path / "b", tmp_path / "c.sqlite"
    text.write_text("no receipts\n")
    empty.touch()
    sqlite3.connect(other).execute("CREATE TABLE t (x)").connection.close()
    for path in (text, empty, other, tmp_path / "absent", tmp_path):
        with pytest.raises(ReceiptError):
            verify(path)
    for path in (text, other, tmp_path):
        with pytest.raises(ReceiptError):
            Recorder(path)


def test_a_ledger_of_another_schema(ledger: Path) -> None:
    samples.tamper(ledger, "UPDATE header SET body = replace(body, '\"schema\":1', '\"schema\":2')")
    for read in (verify, Recorder):
        with pytest.raises(ReceiptError, match="schema: the file has 2, and this release reads 1"):
            read(ledger)


def test_heads_read_back(ledger: Path) -> None:
    head = verify(ledger).head
    assert verify(ledger, heads=[str(head), head.hash]).whole
    assert isinstance(head, Head) and str(head).startswith(f"{COUNT}:")


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE records SET hash = 5 WHERE sequence = 7", "DELETE FROM head",
        "UPDATE records SET body = 5 WHERE sequence = 7", "UPDATE head SET hash = 7",
        "UPDATE records SET body = x'ff00' WHERE sequence = 7", "UPDATE head SET sequence = 'x'",
        "UPDATE records SET body = '{}' WHERE sequence = 7", "UPDATE objects SET body = 5",
        "UPDATE records SET sequence = -3 WHERE sequence = 7", "UPDATE header SET body = '[1]'",
        "UPDATE records SET body = replace(body, 'request', 'gap') WHERE sequence = 3",
    ],
)  # fmt: skip
def test_an_edit_of_any_type_is_named_or_refused(ledger: Path, edit: str) -> None:
    """Columns of SQLite take every type. Nothing here may end in an error of another kind."""
    samples.tamper(ledger, edit)
    whole = None
    with contextlib.suppress(ReceiptError):
        whole = verify(ledger).whole
    with contextlib.suppress(ReceiptError):
        export(open_ledger(ledger), len)
    with contextlib.suppress(ReceiptError):
        Ledger(ledger).close()
    assert not whole


def test_an_export_with_any_bit_flipped(ledger: Path) -> None:
    """It is refused or has a fault, unless a hexadecimal digit only became a capital."""
    path, draw = exported(ledger), random.Random(3)
    raw = path.read_bytes()
    for _ in range(400):
        at, bit = draw.randrange(len(raw)), draw.randrange(8)
        harmed = bytearray(raw)
        harmed[at] ^= 1 << bit
        path.write_bytes(harmed)
        with contextlib.suppress(ReceiptError):
            same = harmed.lower() == raw.lower()
            assert not verify(path).whole or same, (at, raw[at - 20 : at + 1], chr(harmed[at]))


def test_the_list_of_weights_is_covered(tmp_path: Path) -> None:
    weights = b'{"leaves":[]}'
    body = encode(samples.identity(manifest=address(weights)))
    objects = {address(body): body, address(weights): weights}
    with Recorder(tmp_path / "r") as recorder:
        recorder.add(samples.receipt(1, identity=address(body)), objects)
    assert verify(tmp_path / "r").whole
    samples.tamper(tmp_path / "r", f"DELETE FROM objects WHERE name = '{address(weights)}'")
    assert kinds(tmp_path / "r") == [("object", 0)]


def test_an_identity_of_another_schema_is_refused(tmp_path: Path) -> None:
    body = b'{"engine":"later"}'
    with Recorder(tmp_path / "r") as recorder:
        recorder.add(samples.receipt(1, identity=address(body)), {address(body): body})
    source = open_ledger(tmp_path / "r")
    with pytest.raises(ReceiptError, match=r"identity: object .*model"):
        identity_of(source, samples.receipt(1, identity=address(body)))
    source.close()
