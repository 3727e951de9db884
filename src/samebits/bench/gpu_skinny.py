"""Products with few output features and a long K, where one tile a processor cannot fill the GPU.

Default cuBLAS splits K here. Contenders as in `gpu_linear`.
"""

from __future__ import annotations

from collections.abc import Iterator

from samebits.bench.gpu import Line
from samebits.bench.gpu_linear import weight_lines

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUICK_ROWS = (1, 16, 256)
#: Router, latent and down projections of DeepSeek-V3, Qwen3-0.6B and Llama-3 cut for 8 GPUs.
SHAPES = ((256, 7168), (576, 7168), (1024, 3072), (1536, 7168), (2112, 7168))
TARGET = 0.95


def lines(quick: bool) -> Iterator[Line]:
    """One line a weight and number of rows."""
    for n, k in SHAPES[1:3] if quick else SHAPES:
        yield from weight_lines("skinny", n, k, QUICK_ROWS if quick else ROWS, TARGET)
