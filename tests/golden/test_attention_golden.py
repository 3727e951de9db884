"""The contract's evaluator against an H200's own attention, byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from golden.attention_golden import CASES, evaluated, words

GOLDEN = Path(__file__).with_name("attention.npz")


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as stored:
        return dict(stored)


@pytest.mark.parametrize("name", list(CASES))
def test_the_evaluator_has_the_chips_bytes(name: str, golden: dict[str, np.ndarray]) -> None:
    out, lse = evaluated(name)
    assert (words(out) == golden[f"{name}/out"]).all()
    # Recorded before the kernels stored the chip's own NaN here: which NaN it was is not compared.
    recorded = golden[f"{name}/lse"]
    undefined = np.isnan(recorded.view(np.float32))
    assert (lse.isnan().numpy() == undefined).all()
    assert (words(lse) == recorded)[~undefined].all()
