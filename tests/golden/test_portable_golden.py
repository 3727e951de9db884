"""Bytes that every machine must have, on every instruction set, and on a GPU where there is one.

`portable.json`: the portable contracts', the bundled model's logits among them, recorded on a CPU.
`exact.json`: the exact contracts', recorded on an H200.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from record_portable import GOLDEN

from samebits.check import machines

FAMILIES: dict[str, tuple[Path, int]] = {
    "portable": (GOLDEN, 74),
    "exact": (GOLDEN.with_name("exact.json"), 39),
}


def held(device: str, family: str) -> None:
    path, cases = FAMILIES[family]
    golden = machines.load(path)
    compared = machines.compare(golden, machines.record(device, family))
    assert len(compared.lines) == len(golden.entries) == cases
    assert not [line for line in compared.lines if line.verdict != "equal"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cpu_holds_them(isa: str, family: str) -> None:
    held("cpu", family)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_holds_them(family: str) -> None:
    held("cuda", family)
