"""Launching kernels of CUDA C++ on operands that the copy engine reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from samebits.engines.driver import _cuda

#: Kinds of kernel parameters: a pointer or an integer, and an fp32 number.
WORD, REAL = "word", "float"
_SWIZZLE_128B, _TYPES = 3, {torch.float16: 6, torch.bfloat16: 9}  # of a CUtensorMap


class Boxes:
    """A tensor [b, h, t, d] that the copy engine reads in boxes of `rows` rows and 64 columns.

    The launcher knows a descriptor by its fields.
    """

    shape: Sequence[int]
    block_shape: Sequence[int]
    strides: Sequence[int]

    def __init__(self, base: torch.Tensor, rows: int) -> None:
        self.base, self.shape, self.block_shape = base, base.shape, _box(rows)
        # The stride of an axis of one entry means nothing, but must be a valid one.
        self.strides = [s if n > 1 else 8 for s, n in zip(base.stride(), base.shape, strict=True)]
        self.padding = "zero"


def matrix_boxes(base: torch.Tensor, rows: int, m: int, k: int, pitch: int) -> Boxes:
    """A matrix [m, k], rows `pitch` elements apart, that the copy engine reads in boxes of `rows`
    rows and 64 columns: whatever axes the tensor at its place has."""
    made = object.__new__(Boxes)
    made.base, made.shape, made.block_shape = base, (m, k), (rows, 64)
    made.strides, made.padding = (pitch, 1), "zero"
    return made


def boxes_of(dtype: torch.dtype, rows: int, axes: int = 4) -> tuple[int, int, int, list[int]]:
    """The parameter that takes `Boxes` of 16-bit elements, with the tensor core's swizzle."""
    return _SWIZZLE_128B, 2, _TYPES[dtype], [*(1,) * (axes - 2), rows, 64]


def _box(rows: int) -> tuple[int, int, int, int]:
    return 1, 1, rows, 64


def readable(x: torch.Tensor) -> bool:
    """Whether the copy engine takes `x`: columns side by side, 16-byte rows, no stride of 0."""
    *outer, last = x.stride()
    return (
        last == 1
        and x.data_ptr() % 16 == 0
        and all(s > 0 and s % 8 == 0 for s, n in zip(outer, x.shape, strict=False) if n > 1)
    )


def launcher(
    name: str,
    cubin: Callable[[], bytes],
    slots: Sequence[Any],
    *,
    threads: int,
    shared: int = 0,
    cluster: int = 1,
    pdl: bool = False,
) -> Any:
    """What launches kernel `name` of a cubin: called with a grid and the kernel's arguments.

    Args:
        cubin: gives the compiled kernels; called once for each device.
        slots: the kind of each parameter: `WORD`, `REAL`, or `boxes_of(...)`.
        threads: of a block.
        shared: bytes of dynamic shared memory of a block.
        cluster: blocks of a cluster; a grid counts clusters.
        pdl: the kernel may start while the one before it runs; it waits for it itself.
    """
    loaded: dict[int, Any] = {}

    def load(device: int, _: tuple[Any, ...]) -> Any:
        # The launcher asks once for each class of arguments: one kernel serves them all.
        if device not in loaded:
            loaded[device] = _cuda.Kernel(
                cubin=cubin(), name=name, device=device, threads=threads, shared=shared,
                ctas=cluster, pdl=pdl, cooperative=False, scratch=0, slots=list(slots),
            )  # fmt: skip
        return loaded[device]

    return _cuda.Launcher(name, load, _no_scratch, [False] * len(slots))


def _no_scratch(size: int, device: int) -> torch.Tensor:
    raise AssertionError("these kernels ask for no scratch memory")
