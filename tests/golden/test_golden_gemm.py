"""Matrix products: the evaluator, and every schedule, give the bytes that an H200 gave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gemm_samples import CASES, Case
from samebits import bits

GOLDEN = np.load(Path(__file__).with_name("gemm.npz"))


def ids(case: Case) -> str:
    return case.name.replace(" ", "-")


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_the_evaluator_gives_the_chip_s_bytes(case: Case) -> None:
    ops = case.operands()
    x, w, bias = ops.pop("x"), ops.pop("w"), ops.pop("bias", None)
    y = case.contract.evaluate(x, w, bias, case.out, **case.factors, **ops)
    assert (bits.view(y).numpy() == GOLDEN[case.name]).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_every_schedule_gives_them(case: Case) -> None:
    from record_gemm import compute

    assert (compute(case, "cuda").cpu().numpy() == GOLDEN[case.name]).all()
