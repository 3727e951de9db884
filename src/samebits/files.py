"""Which of this project's files a file is, for the error of a command that wants another one."""

from __future__ import annotations

import json

PLAN = "a plan"
RECORD = "a record of `samebits record`"
REPORT = "a report of `samebits check`"
RECEIPTS = "a file of receipts"
#: Fields that tell, what the file is, and which commands read it.
_KINDS = (
    ({"schedules_id", "checksum"}, PLAN, "plan show"),
    ({"schedules_id", "entries"}, "what `samebits plan show --json` prints", ""),
    ({"device_class", "family"}, RECORD, "compare"),
    ({"verdict", "factors"}, "an explanation of `samebits explain`", ""),
    ({"target", "tests"}, REPORT, "explain"),
    ({"header"}, RECEIPTS, "receipts verify"),
)
_DATABASE = b"SQLite format 3\0"


def it_is(data: bytes, wanted: str) -> str:
    """What a file is that is not what was wanted, as the end of a sentence.

    Args:
        data: its bytes, or the first of them where it has several lines.
        wanted: `PLAN`, `RECORD`, ...

    Returns:
        "" where nothing tells, or where it is a damaged one of those that were wanted.

    Example:
        >>> it_is(b'{"target": "tiny", "tests": []}', PLAN)
        '; it is a report of `samebits check`, which `samebits explain` reads'
    """
    lines = data.partition(b"\n")[0], data
    fields: set[str] = next(filter(None, map(_fields, lines)), set())
    for telling, what, readers in _KINDS:
        if telling <= fields or (what == RECEIPTS and data.startswith(_DATABASE)):
            if what == wanted:
                return ""
            return f"; it is {what}" + (f", which `samebits {readers}` reads" if readers else "")
    return ""


def _fields(data: bytes) -> set[str]:
    """Names in a JSON object."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return set()
    return set(found) if isinstance(found, dict) else set()
