"""Records what this GPU computes for `gemm_samples.CASES`: python tests/golden/record_gemm.py.

All candidate schedules must agree before their bytes are written to gemm.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from gemm_samples import CASES, Case, schedules_for
from samebits import bits
from samebits.engines.triton.linear.run import run

PATH = Path(__file__).parent / "gemm.npz"


def compute(case: Case, device: str) -> torch.Tensor:
    """The bits of a case, which every candidate schedule gives, as integers.

    Raises:
        AssertionError: two schedules differ.
    """
    ops = {name: x.to(device) for name, x in case.operands().items()}
    x, w, bias = ops.pop("x"), ops.pop("w"), ops.pop("bias", None)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[case.out]
    found: torch.Tensor | None = None
    for schedule in schedules_for(case.contract, case.shape[-3]):
        y = torch.full((*x.shape[:-1], w.shape[-2]), torch.nan, dtype=dtype, device=device)
        c = None if bias is None else bias.expand(y.shape)
        run(case.contract, schedule, x, w, y, c, **case.factors, **ops)
        words = bits.view(y)
        assert found is None or torch.equal(found, words), f"{case.name}: {schedule} differs"
        found = words
    assert found is not None
    return found


if __name__ == "__main__":
    np.savez_compressed(PATH, **{c.name: compute(c, "cuda").cpu().numpy() for c in CASES})
