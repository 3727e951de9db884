"""Writes the bytes of one family of contracts, portable or exact, as this machine computes them.

Run it only when such a contract changes on purpose: python tests/golden/record_portable.py
(portable.json), or, on a machine with a GPU, python tests/golden/record_portable.py exact cuda
(exact.json).
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace

from samebits.check.machines import Record, record

GOLDEN = Path(__file__).with_name("portable.json")


def nowhere(found: Record) -> Record:
    """A record without the machine that it came from."""
    return replace(found, device_class="any", environment={})


if __name__ == "__main__":
    family, device = sys.argv[1:] or ("portable", "cpu")
    file = GOLDEN.with_name(f"{family}.json")
    file.write_text(nowhere(record(device, family)).to_json(), encoding="utf-8")
