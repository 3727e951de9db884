"""Writes portable.json: what every machine computes under the portable contracts.

Run it only when a portable contract changes on purpose: python tests/golden/record_portable.py
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from samebits.check.machines import Record, record

GOLDEN = Path(__file__).with_name("portable.json")


def nowhere(found: Record) -> Record:
    """A record without the machine that it came from."""
    return replace(found, device_class="any", environment={})


if __name__ == "__main__":
    GOLDEN.write_text(nowhere(record("cpu", "portable")).to_json(), encoding="utf-8")
