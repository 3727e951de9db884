"""The bits of this machine are those of every other (docs/measured.md)."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from samebits.engines import cpu

SCRIPT = Path(__file__).parents[1] / "scripts" / "machine_hash.py"


def test_this_machine_has_the_recorded_bits(capsys: pytest.CaptureFixture[str]) -> None:
    before = cpu.isa()
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    finally:
        cpu.set_isa(before)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(cpu.isas())
    assert {line.split()[-1] for line in lines} == {"60fa24ce374d48b2"}
