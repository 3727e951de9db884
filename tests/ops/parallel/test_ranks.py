"""The same bytes from 1, 2, 4 and 8 ranks: over gloo on a CPU, and on GPUs where there are any.

On GPUs two ways: ranks that share the GPUs at hand and talk over gloo, for every number of ranks;
and a rank a GPU over NCCL, for as many as are visible.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from parallel_cases import CASES, CPU, GPU, STOCK, Sizes, run

Found = dict[int, list[dict[str, str]]]


def spawn(
    folder: Path, device: str, backend: str, counts: tuple[int, ...], sizes: Sizes, names: list[str]
) -> Found:
    """By number of ranks, what each rank found."""
    args = (counts, str(folder), device, backend, sizes, names)
    mp.spawn(run, args=args, nprocs=max(counts))  # type: ignore[no-untyped-call]
    return {
        size: [json.loads((folder / f"{size}-{i}.json").read_text()) for i in range(size)]
        for size in counts
    }


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return spawn(tmp_path_factory.mktemp("cpu"), "cpu", "gloo", (1, 2, 4), CPU, list(CASES))


def others(found: Found) -> list[tuple[str, str, str]]:
    """(where, expected, got) of results that differ from those of one rank, or between repeats."""
    one = found[1][0]
    cases = {case for ranks in found.values() for results in ranks for case in results}
    wrong = []
    for size, ranks in found.items():
        for index, results in enumerate(ranks):
            for case in sorted(cases):
                expected, got = one.get(case, "missing"), results.get(case, "missing")
                if got != expected or not is_digest(got):
                    wrong.append((f"{case}, rank {index} of {size}", expected, got))
    return wrong


def is_digest(found: str) -> bool:
    """Not what is said in its place: that repeats differ, or that there is no result."""
    return len(found) == 64 and set(found) <= set("0123456789abcdef")


def only(found: Found, name: str) -> Found:
    """The results of one case."""
    return {
        size: [
            {case: d for case, d in of_rank.items() if case.split()[0] == name} for of_rank in ranks
        ]
        for size, ranks in found.items()
    }


@pytest.mark.parametrize("name", [name for name in CASES if name != STOCK])
def test_bits_do_not_depend_on_the_number_of_ranks(on_cpu: Found, name: str) -> None:
    assert len(only(on_cpu, name)[1][0]) == len(CPU.tokens) * len(CPU.dtypes)
    assert not others(only(on_cpu, name))


def test_stock_all_reduce_fails_the_same_test(on_cpu: Found) -> None:
    assert others(only(on_cpu, STOCK))


def gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@pytest.mark.skipif(gpus() < 1, reason="needs a GPU: none is visible")
@pytest.mark.parametrize("dtype", GPU.dtypes, ids=str)
def test_ranks_that_share_gpus(tmp_path: Path, dtype: torch.dtype) -> None:
    """Over gloo: only the number of ranks is in question here, so a few sizes do."""
    few = replace(GPU, tokens=(1, 3, 64, 513), dtypes=(dtype,), repeats=2)
    found = spawn(tmp_path, "cuda", "gloo", (1, 2, 4, 8), few, list(CASES))
    assert not [w for name in CASES if name != STOCK for w in others(only(found, name))]
    assert others(only(found, STOCK))


@pytest.mark.skipif(gpus() < 1, reason="needs a GPU: none is visible")
def test_ranks_that_share_gpus_over_nccl(tmp_path: Path) -> None:
    """In captured graphs. A message waits for both ranks' turns on the GPU, so sizes are few."""
    few = replace(GPU, tokens=(1, 65), dtypes=(torch.bfloat16,), repeats=2)
    found = spawn(tmp_path, "cuda", "nccl", (1, 2, 4), few, list(CASES))
    assert not [w for name in CASES if name != STOCK for w in others(only(found, name))]
    assert others(only(found, STOCK))


@pytest.mark.skipif(gpus() < 2, reason=f"needs two GPUs or more for NCCL: {gpus()} visible")
def test_a_rank_a_gpu(tmp_path: Path) -> None:
    """Over NCCL, for all numbers of tokens, 200 times."""
    counts = tuple(size for size in (1, 2, 4, 8) if size <= gpus())
    found = spawn(tmp_path, "cuda", "nccl", counts, GPU, list(CASES))
    assert not [w for name in CASES if name != STOCK for w in others(only(found, name))]
    assert others(only(found, STOCK))
