"""Triton accepts every form of the attention, fold and exact kernels for a Hopper GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def test_kernels_are_lowered() -> None:
    program = Path(__file__).with_name("lowering.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
