"""Override for grouped products on CUDA. On a CPU torch composes them of products, which count."""

from __future__ import annotations

from typing import Any

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.mode.fallback import stock
from samebits.mode.registry import aten

_GROUPED_MM = stock("_grouped_mm")


@aten("_grouped_mm", key="CUDA")
def grouped_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    rows_by_group = self.dim() == 2 and mat2.dim() == 3 and offs is not None and bias is None
    if self.dtype is not mat2.dtype or self.dtype not in DTYPE_CODE:
        return _GROUPED_MM.by_dtype(self.dtype, self, mat2, offs, bias, out_dtype)
    if not rows_by_group or out_dtype not in (None, self.dtype, torch.float32):
        return _GROUPED_MM.uncovered(
            "only rows by group, [M, K] x [groups, K, N] without bias, have a contract",
            self, mat2, offs, bias, out_dtype,
        )  # fmt: skip
    from samebits.ops.moe import cuda

    assert offs is not None
    edges = torch.nn.functional.pad(offs, (1, 0))
    weight = mat2.transpose(1, 2)
    return cuda.grouped_linear(self, weight, None, edges, None, out_dtype or self.dtype, None, None)
