"""The Triton engine: kernels for NVIDIA GPUs, one folder a family of operations.

A kernel file holds kernels and a launcher that takes a contract and a schedule. Nothing here
chooses: `samebits.plan` does. Importing this package needs neither Triton nor a GPU.
"""

from __future__ import annotations

import functools

import torch

from samebits.contract import PORTABLE
from samebits.engines import family
from samebits.errors import DTypeError

#: Device classes by compute capability. Another class is another entry, and tables of its own.
CLASSES = {(9, 0): "sm_90"}


@functools.lru_cache(maxsize=64)
def device_class(index: int) -> str:
    """The device class of CUDA device `index`, e.g. "sm_90".

    Raises:
        DTypeError: no contracts are defined for this architecture.
    """
    capability = torch.cuda.get_device_capability(index)
    if capability not in CLASSES:
        raise DTypeError(
            f"no contracts for {torch.cuda.get_device_name(index)} (compute capability "
            f"{capability[0]}.{capability[1]}): covered are {sorted(CLASSES.values())}"
        )
    return CLASSES[capability]


def contract_class(index: int) -> str:
    """Whose contracts are in force on CUDA device `index`: its device class's, or "portable".

    Raises:
        DTypeError: as `device_class`.
    """
    own = device_class(index)
    return PORTABLE if family.portable() else own
