"""Kernels that join ranks' partial sums: they compile; and as C++ on threads, their protocol."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import samebits
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.peer import join
from samebits.errors import DeviceError

KERNELS = Path(samebits.__file__).parent / "engines" / "cuda" / "peer"
HERE = Path(__file__).parent / "emulated"
COMPILER = shutil.which("g++")

emulated = pytest.mark.skipif(COMPILER is None, reason="needs g++ to compile join.cu as C++")


def build(
    folder: Path, ranks: int, kind: int, unroll: int, spoilt: tuple[str, str] = ("", "")
) -> Path:
    """The program of `ranks` ranks; kind 0: results in fp32, 1: in bf16; spoilt: a mistake."""
    assert COMPILER is not None
    # join.cu takes the instructions that lie beside it: here the emulated ones.
    for file in (HERE / "instructions.cuh", HERE / "ranks.cpp"):
        shutil.copy(file, folder)
    source = (KERNELS / "join.cu").read_text()
    assert spoilt[0] in source
    (folder / "join.cu").write_text(source.replace(*spoilt))
    values = {"RANKS": ranks, "KIND": kind, "THREADS": 8, "UNROLL": unroll}
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_they_compile(dtype: torch.dtype) -> None:
    try:
        nvrtc.version()
    except DeviceError:
        pytest.skip("no NVRTC here")
    for ranks in join.RANKS:
        assert join.compiled(ranks, dtype, join.STREAM.unroll).startswith(b"\x7fELF")


@emulated
@pytest.mark.parametrize(("ranks", "kind", "unroll"), [(2, 1, 4), (4, 0, 2), (8, 1, 1)])
def test_all_ranks_have_the_folded_sums(tmp_path: Path, ranks: int, kind: int, unroll: int) -> None:
    assert run(build(tmp_path, ranks, kind, unroll), 240 // ranks) == [0, 0, *[0] * ranks]


@emulated
@pytest.mark.parametrize(
    "spoilt",
    [
        ("    __syncthreads();\n    if (threadIdx.x >= RANKS", "    if (threadIdx.x >= RANKS"),
        ("told(base + turn,", "told(base + turn - (turn > 1),"),
    ],
    ids=["a flag before its stores", "a turn too early"],
)
def test_a_spoilt_protocol_is_seen(tmp_path: Path, spoilt: tuple[str, str]) -> None:
    assert run(build(tmp_path, 2, 1, 2, spoilt), 40)[0]


@emulated
def test_a_rank_that_stops_leaves_nan_and_a_word(tmp_path: Path) -> None:
    """Calls 0 to 4 are whole; 5 and 6 have NaN on the three ranks that are left."""
    wrong, missing, *told = run(build(tmp_path, 4, 1, 2), 7, 5)
    assert wrong == 0 and missing == 2 * 3
    assert told[1] == 0 and all(told[rank] for rank in (0, 2, 3)) and 2 in told


@emulated
def test_a_rank_in_another_call_leaves_nan_and_a_word(tmp_path: Path) -> None:
    """A row more on rank 1: told at once, by packets and flags, and not as a rank that is late."""
    program = build(tmp_path, 2, 1, 2)
    for other in range(5):  # by every kernel
        wrong, missing, *told = run(program, other + 2, -1, other)
        assert wrong == 0 and missing == 2 * 2  # this call and the next one, on both ranks
        assert any(word & 0x100 for word in told) and all(word & 0xFF for word in told)


@emulated
def test_a_block_that_begins_while_another_fails_ends(tmp_path: Path) -> None:
    """All of its threads take part, or none: those that did would wait for the others for ever."""
    program = build(tmp_path, 8, 1, 2)
    for _ in range(4):
        wrong, missing, *told = run(program, 4, -1, 1)
        assert wrong == 0 and missing == 3 * 8 and all(word & 0xFF for word in told)
