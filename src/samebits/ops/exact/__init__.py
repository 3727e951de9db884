"""Operations whose sums are exact: no order, no split, no device, no number of ranks in any bit.

Every sum is the correctly rounded value of the exact sum of its terms (`samebits.contract.exact`).
An engine first computes it in fp64, or in integers, with a bound of the error; only where that does
not decide the rounding are the terms added again without any rounding. So bits never depend on data
that an engine finds easy, and the time nearly never on data that it finds hard.

Softmax, norms and attention are fp32 operations, each rounded once, around such sums; their
formulas are `ExactContract.formula`. Operands are fp32, bf16 or fp16 tensors of one dtype, on a CPU
or on a CUDA device of class sm_90; results have their dtype, or fp32 with ``out_dtype``. There is
no backward: a tensor that requires a gradient is refused while gradients are recorded.
"""

from __future__ import annotations

from samebits.ops.exact.attention import attention
from samebits.ops.exact.collective import all_reduce, row_parallel_linear
from samebits.ops.exact.products import baddbmm, dot, linear, matmul
from samebits.ops.exact.rows import (
    layer_norm,
    log_softmax,
    logsumexp,
    mean,
    rms_norm,
    softmax,
    sum,
    vector_norm,
)

__all__ = [
    "all_reduce", "attention", "baddbmm", "dot", "layer_norm", "linear", "log_softmax", "logsumexp",
    "matmul", "mean", "rms_norm", "row_parallel_linear", "softmax", "sum", "vector_norm",
]  # fmt: skip
