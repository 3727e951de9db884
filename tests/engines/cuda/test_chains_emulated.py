"""Chains of fma in CUDA C++, as C++ on threads: bits of tiles, tails and stages, without a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from samebits.engines.cuda.linear import chains, fma
from samebits.engines.cuda.linear.few import FewSchedule

HERE = Path(__file__).parent / "emulated"
COMPILER = shutil.which("g++")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++ to compile CUDA C++ as C++")

FEW = chains.choose(1, 4096, 4096)
SMALL = fma.FmaSchedule(
    warp_rows=1, warp_columns=2, thread_rows=2, thread_columns=3, stages=2, unroll=2, band=1
)
SKEWED = fma.FmaSchedule(
    warp_rows=2, warp_columns=1, lane_rows=4, thread_rows=1, thread_columns=2, depth=64, stages=3,
    ahead=3, unroll=4, fetchers=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [
        (FEW, 0), (SMALL, 1), (SKEWED, 2), (FewSchedule(rows=1, columns=8), 1),
        (FewSchedule(rows=2, columns=16), 2), (FewSchedule(rows=8, columns=8), 0),
    ],
)  # fmt: skip
def test_the_kernels_bits_are_a_chains(
    tmp_path: Path, schedule: chains.ChainSchedule, kind: int
) -> None:
    """Copies that come as late as they may, and as early: no block of k is read before it is there,
    none is written over while it is read."""
    assert COMPILER is not None
    # fma.cuh takes the instructions that lie beside it: here the emulated ones.
    for file in (schedule.source, chains.HEADER, HERE / "hopper.cuh", HERE / "chains.cpp"):
        shutil.copy(file, tmp_path)
    flags = [f"-D{name}={value}" for name, value in schedule.constants(kind, kind).items()]
    subprocess.run(
        [COMPILER, "-std=c++20", "-O1", "-march=native", "-ffp-contract=off", "-pthread",
         *flags, "chains.cpp", "-o", "chains"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    rows, columns = schedule.rows, schedule.columns
    depth = 128 if isinstance(schedule, FewSchedule) else schedule.depth
    cases = (
        (0, 1, 9, 5),
        (0, rows + 1, columns, 3 * depth + 13),
        (1, rows, columns + 3, 7 * depth),
        (0, rows, columns, 11 * depth + 6),
    )
    for case in cases:
        done = subprocess.run(
            [tmp_path / "chains", *map(str, case)],
            capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        assert done.stdout == "0\n", case
