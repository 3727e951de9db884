"""The kernels that join ranks' partial sums, as C++ on threads: their protocol, without a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import samebits

KERNELS = Path(samebits.__file__).parent / "engines" / "cuda" / "peer"
HERE = Path(__file__).parent / "emulated"
COMPILER = shutil.which("g++")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++ to compile join.cu as C++")


def build(folder: Path, ranks: int, kind: int) -> Path:
    """The program of `ranks` ranks; kind 0: results in fp32, 1: in bf16."""
    assert COMPILER is not None
    # join.cu takes the instructions that lie beside it: here the emulated ones.
    for file in (KERNELS / "join.cu", HERE / "instructions.cuh", HERE / "ranks.cpp"):
        shutil.copy(file, folder)
    values = {"RANKS": ranks, "KIND": kind, "THREADS": 8}
    flags = [f"-D{name}={value}" for name, value in values.items()]
    program = folder / "ranks"
    subprocess.run(
        [COMPILER, "-std=c++20", "-O1", "-pthread", *flags, "ranks.cpp", "-o", str(program)],
        cwd=folder, check=True,
    )  # fmt: skip
    return program


def run(program: Path, *words: int) -> list[int]:
    """[wrong results, calls with missing ones, what the host is told by each rank]."""
    done = subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, check=True, timeout=300
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize(("ranks", "kind"), [(2, 1), (4, 0), (8, 1)])
def test_all_ranks_have_the_folded_sums(tmp_path: Path, ranks: int, kind: int) -> None:
    assert run(build(tmp_path, ranks, kind), 160 // ranks) == [0, 0, *[0] * ranks]


def test_a_rank_that_stops_leaves_nan_and_a_word(tmp_path: Path) -> None:
    """Calls 0 to 4 are whole; 5 and 6 have NaN on the three ranks that are left."""
    wrong, missing, *told = run(build(tmp_path, 4, 1), 7, 5)
    assert wrong == 0 and missing == 2 * 3
    assert told[1] == 0 and all(told[rank] for rank in (0, 2, 3)) and 2 in told
