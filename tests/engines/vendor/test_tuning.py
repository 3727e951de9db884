"""Which algorithms a tuner sees, in which order; and that what is admitted has the bits."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

import interpreter
from samebits.contract import ContractKey, LinearContract
from samebits.engines.vendor import tuning
from samebits.engines.vendor.tiles import CLUSTERS, TILES
from samebits.plan import contract_for

needs_gpu = pytest.mark.skipif(interpreter.INTERPRETED, reason="needs a GPU")


def test_tiles_are_the_enumeration_of_the_library() -> None:
    # From the library's documentation: numbers at both ends of every stretch.
    known = {
        1: (8, 8), 20: (128, 128), 35: (256, 32), 36: (8, 128), 46: (8, 768), 151: (96, 192),
        177: (128, 384), 232: (256, 192), 279: (504, 64), 280: (520, 64), 311: (768, 64),
        312: (64, 16), 392: (64, 760), 393: (128, 8), 447: (128, 512), 485: (192, 336),
        513: (256, 256), 587: (512, 128), 629: (768, 72), 630: (768, 80),
    }  # fmt: skip
    assert {number: TILES[number] for number in known} == known
    assert len(TILES) == len(set(TILES.values())) == 630


def test_the_model_prefers_whole_waves() -> None:
    first = (66, 20, 1, 0, 0, 0, 35, 0, 2)
    for m, n, k in [(768, 4096, 4096), (192, 6144, 4096), (384, 8192, 8192)]:
        chosen = [TILES[c[1]] for c in islice(tuning._others(first, m, n, k), 4)]
        for rows, cols in chosen:
            waves = -(-n // rows) * -(-m // cols) / 132
            assert 0.9 < waves / -(-waves // 1) <= 1, (m, n, k, rows, cols)
    everything = list(tuning._others(first, 64, 512, 512))
    assert len(set(everything)) == len(everything) > 500
    assert all(c[2:5] == (1, 0, 0) and c[6] == 35 and c[8] in CLUSTERS for c in everything)


@needs_gpu
@pytest.mark.parametrize("shape", [(1, 512, 512), (192, 1024, 512), (333, 136, 1096)])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_candidates_are_admitted(shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    key = ContractKey(op="linear", dtype=dtype, out_dtype=dtype, device="sm_90", n=n, k=k)
    contract = contract_for(key)
    assert isinstance(contract, LinearContract)
    found = tuning.candidates(m, n, k, tuning._DTYPES[dtype])
    # For one row of fp32 the library may have matrix-vector kernels alone: their tree is another.
    least = int(m > 1) if dtype == "fp32" else 16
    assert len(found) >= least and len(set(found)) == len(found)
    assert all(schedule.tile for schedule in found)
    for schedule in found:
        assert tuning.admit(contract, schedule, m, n, k) is None, schedule


@needs_gpu
def test_splits_are_chains_of_products() -> None:
    n, k = 512, 4096
    key = ContractKey(op="linear", dtype="bf16", out_dtype="bf16", device="sm_90", n=n, k=k)
    contract = contract_for(key)
    assert isinstance(contract, LinearContract) and str(contract.tree) == "split(4)"
    schedule = tuning.candidates(64, n, k // 4, torch.bfloat16, out_dtype=torch.float32)[0]
    assert tuning.admit(contract, schedule, 64, n, k) is None


@needs_gpu
def test_other_bits_are_struck_out(monkeypatch: pytest.MonkeyPatch) -> None:
    n, k = 4096, 4096
    key = ContractKey(op="linear", dtype="bf16", out_dtype="bf16", device="sm_90", n=n, k=k)
    contract = contract_for(key)
    assert isinstance(contract, LinearContract)
    schedule = tuning.candidates(8, n, k, torch.bfloat16)[0]

    def lie(contract: object, schedule: object, x: torch.Tensor, w: torch.Tensor,
            y: torch.Tensor, c: torch.Tensor | None) -> bool:  # fmt: skip
        half = k // 2
        y.copy_(x[:, :half].float() @ w[:, :half].float().t())
        y.add_(x[:, half:].float() @ w[:, half:].float().t())
        return True

    monkeypatch.setattr(tuning, "run", lie)
    why = tuning.admit(contract, schedule, 8, n, k)
    assert why is not None and "elements differ" in why and contract.id in why
