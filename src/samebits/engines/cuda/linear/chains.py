"""Launches chains of IEEE fma, for fp32 and for the portable contracts: fma.cu and few.cu.

Their bits are those of every other schedule of the contract. What they take is narrower (see
`refusal`); the rest is the Triton kernels'.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from samebits.contract import CUDA_FMA, Chain, LinearContract
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.launch import REAL, WORD, launcher
from samebits.engines.cuda.linear import few, fma, operands

ChainSchedule = fma.FmaSchedule | few.FewSchedule
_Tile = TypeVar("_Tile", fma.FmaSchedule, few.FewSchedule)
#: Types of the operands and the result, for both kernels.
HEADER = Path(__file__).with_name("fma.cuh")
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def choose(m: int, n: int, k: int) -> ChainSchedule:
    """The most promising schedule for [m, k] x [n, k]."""
    return ranked(m, n, k)[0]


def ranked(m: int, n: int, k: int, most: int = 1) -> list[ChainSchedule]:
    """The `most` best of each kernel that may be the faster one, the most promising first.

    Of two as fast the one that reads less. Times of two kernels are not compared: their models are
    not so good.
    """
    own = _best(few.TILES, few.cycles, m, n, k)[:most] if few.faster(m, n) else []
    return [*own, *_best(fma.TILES, fma.cycles, m, n, k)[:most]]


def _best(
    tiles: Sequence[_Tile], cycles: Callable[[_Tile, int, int, int], float], m: int, n: int, k: int
) -> list[_Tile]:
    return sorted(tiles, key=lambda s: (cycles(s, m, n, k), s.tiles(m, n) * (s.rows + s.columns)))


def refusal(
    contract: LinearContract,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None = None,
) -> str | None:
    """Why `Product` does not take these operands of this contract; None if it does."""
    if contract.arithmetic != CUDA_FMA or contract.tree != Chain() or contract.scaling != "none":
        return f"the contract is no chain of fma: {contract.tree}, {contract.arithmetic}"
    if min(*y.shape, x.shape[-1]) < 1 or max(*y.shape, x.shape[-1]) >= 2**31 - 1024:
        return "an axis is empty, or longer than the kernel counts"
    if y.stride(-1) != 1:
        return f"columns of y are apart: strides {y.stride()}"
    return operands.refusal(contract, x, w, c, {"x": x, "w": w})


class Product:
    """A launch made ready for operands of these strides and dtypes; M is free.

    The operands are such that there is no `refusal`.

    Attributes:
        repeats: a launch and no other memory than the operands': it may be `recorded`.
    """

    repeats = True

    def __init__(
        self,
        schedule: ChainSchedule,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
    ) -> None:
        self.n, self.k = w.shape
        self.schedule = schedule
        self.pitches = x.stride(0), w.stride(0), y.stride(0)
        self.launch = _launcher(schedule, x.dtype, y.dtype)

    def __call__(
        self,
        m: int,
        batch: int,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        alpha: float,
        beta: float,
        *_: Any,
    ) -> None:
        self.launch(
            (self.schedule.tiles(m, self.n),),
            x,
            w,
            c,
            y,
            *self.pitches,
            m,
            self.n,
            self.k,
            alpha,
            beta,
        )


def run(
    contract: LinearContract,
    schedule: ChainSchedule,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> str | None:
    """y = epilogue(x @ w.T) with the bits of `contract`, if the kernel takes the operands.

    Returns:
        None; or why it does not take them, and nothing has been computed: take another schedule of
        the contract then.
    """
    c = None if beta == 0 else c
    why = refusal(contract, x, w, y, c)
    if why is None:
        Product(schedule, x, w, y)(len(y), 1, x, w, y, c, float(alpha), float(beta))
    return why


def compiled(schedule: ChainSchedule, input: int, output: int) -> bytes:
    """The cubin of a schedule's kernel; types as fma.cuh numbers them.

    Raises:
        DeviceError: as `nvrtc.compile_source`.
    """
    values = schedule.constants(input, output)
    return nvrtc.compile_source(schedule.source, "sm_90a", values, (HEADER,))


@functools.cache
def _launcher(schedule: ChainSchedule, input: torch.dtype, output: torch.dtype) -> Any:
    types = _TYPES[input], _TYPES[output]
    return launcher(
        schedule.kernel, lambda: compiled(schedule, *types), (*(WORD,) * 10, REAL, REAL),
        threads=schedule.threads, shared=schedule.shared(input.itemsize), pdl=True,
    )  # fmt: skip
