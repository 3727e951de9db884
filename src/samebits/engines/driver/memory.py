"""Memory for results, for less host time than ``torch.empty`` takes."""

from __future__ import annotations

from typing import Any

import torch

# What torch's own compiler calls for its buffers: the same allocator, without the dispatcher.
_guards: Any = torch._C._dynamo.guards
_empty: Any = getattr(_guards, "_empty_strided_cuda", None)
_current: Any = getattr(torch._C, "_cuda_getDevice", None)


def empty(rows: int, columns: int, dtype: torch.dtype, device: int) -> torch.Tensor:
    """An uninitialised [rows, columns] with contiguous rows.

    Args:
        device: index of a CUDA device; -1 for memory of the CPU (``Tensor.get_device()``).
    """
    if device >= 0 and _empty is not None and _current() == device:
        result: torch.Tensor = _empty((rows, columns), (columns, 1), dtype)
        return result
    place = torch.device("cuda", device) if device >= 0 else torch.device("cpu")
    return torch.empty(rows, columns, dtype=dtype, device=place)
