"""The portable contracts' bytes, the bundled model's logits among them: on every instruction set,
and on a GPU where there is one."""

from __future__ import annotations

import pytest
import torch
from record_portable import GOLDEN

from samebits.check import machines


def held(device: str) -> None:
    golden = machines.load(GOLDEN)
    compared = machines.compare(golden, machines.record(device, "portable"))
    assert len(compared.lines) == len(golden.entries) == 74
    assert not [line for line in compared.lines if line.verdict != "equal"]


def test_a_cpu_holds_them(isa: str) -> None:
    held("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_holds_them() -> None:
    held("cuda")
