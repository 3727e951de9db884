"""Launches the products of product.cu by a contract and a schedule.

Their bits are those of every other schedule of the contract. What they take is narrower (see
`refusal`); the rest is the Triton kernels'.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from samebits.contract import LinearContract, path
from samebits.engines import tickets
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.launch import REAL, WORD, boxes_of, launcher, matrix_boxes
from samebits.engines.cuda.linear import operands, wgmma
from samebits.engines.cuda.linear.schedule import ProductSchedule, accumulators
from samebits.engines.driver import _cuda
from samebits.engines.leaves import leaves_of

_SOURCE = Path(__file__).with_name("product.cu")
_PATH = (_SOURCE.parent.parent / "path.cuh",)
#: `Product`, or why there is none, by contract, schedule and operands.
_PLANS = _cuda.Memo(8192)
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def refusal(
    contract: LinearContract,
    schedule: ProductSchedule,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None = None,
) -> str | None:
    """Why `product` does not take these operands of this contract; None if it does."""
    if contract.input not in _TYPES or contract.scaling != "none":
        return f"the contract multiplies {contract.input} with scaling {contract.scaling}"
    if min(*y.shape, x.shape[-1]) < 1:
        return "an operand is empty"
    if not schedule.takes(leaves_of(contract.tree, x.shape[-1])):
        return f"{schedule} does not fold the leaves of {contract.tree} over {x.shape[-1]}"
    if w.shape[-2] % 8:
        return f"{w.shape[-2]} columns are no multiple of 8"
    return operands.refusal(contract, x, w, c, {"x": x, "w": w, "y": y})


def run(
    contract: LinearContract,
    schedule: ProductSchedule,
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
    if beta == 0:
        c = None
    checked = tickets.checking()
    known = _PLANS.get(contract, schedule, x, w, y, c, checked)
    if known is None:
        known = refusal(contract, schedule, x, w, y, c)
        known = known or Product(contract, schedule, x, w, y, c)
        _PLANS.put(known, contract, schedule, x, w, y, c, checked)
    if isinstance(known, str):
        return known
    known(y.shape[0], 1, x, w, y, c, float(alpha), float(beta))
    return None


class Product:
    """A launch made ready for operands of these strides, alignments and dtypes; M is free.

    The operands are such that there is no `refusal`.

    Attributes:
        repeats: a launch and no other memory than the operands': it may be `recorded`.
    """

    repeats = True

    def __init__(
        self,
        contract: LinearContract,
        schedule: ProductSchedule,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
    ) -> None:
        self.n, self.k = w.shape
        leaves = leaves_of(contract.tree, self.k)
        self.leaf, self.boxes = leaves.length, schedule.boxes
        self.height, self.width = schedule.height, schedule.width
        self.blocks = leaves.count if schedule.split else 2 if schedule.share else 1
        self.split = schedule.split
        self.processors = _processors(y.get_device())
        self.pitches = x.stride(0), w.stride(0), y.stride(0)
        self.ticket: tuple[int, ...] = ()
        if tickets.checking():
            subject = tickets.Subject("linear", contract.id, repr(schedule))
            expected = path.expected(contract.tree, self.k)
            self.ticket = (tickets.ticket(x.device, subject, expected).data_ptr(),)
        self.launch = _launcher(
            schedule, x.dtype, leaves.count if self.split else 1,
            0 if self.split else accumulators(leaves), leaves.pairwise, y.dtype is torch.float32,
            bool(self.ticket),
        )  # fmt: skip

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
        blocks = -(-m // self.height) * -(-self.n // self.width) * self.blocks
        if not self.split:
            blocks = min(blocks, self.processors)
        (box_x, box_w), (pitch_x, pitch_w, pitch_y) = self.boxes, self.pitches
        self.launch(
            (blocks,), matrix_boxes(x, box_x, m, self.k, pitch_x),
            matrix_boxes(w, box_w, self.n, self.k, pitch_w), y, pitch_y, c, self.leaf, alpha, beta,
            *self.ticket,
        )  # fmt: skip


@functools.cache
def _processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def constants(
    schedule: ProductSchedule,
    bf16: bool,
    parts: int,
    fold: int,
    pairwise: bool,
    wide: bool,
    check: bool = False,
) -> dict[str, int]:
    """The kernel's compile-time parameters."""
    return {
        "GROUPS": schedule.groups, "COLS": schedule.columns, "CHUNKS": schedule.chunks,
        "STAGES": schedule.stages, "BAND": schedule.band, "BF16": int(bf16),
        "SPLIT": parts if parts > 1 else 0, "FOLD": fold, "PAIRWISE": int(pairwise),
        "SHARE": schedule.share, "WIDE": int(wide), "CHECK": int(check),
    }  # fmt: skip


def cubin(values: dict[str, int]) -> bytes:
    """The compiled kernel."""
    header = wgmma.header(values["COLS"], "bf16" if values["BF16"] else "f16")
    return nvrtc.compile_source(_SOURCE, "sm_90a", values, _PATH, {"wgmma.cuh": header})


@functools.cache
def _launcher(
    schedule: ProductSchedule,
    dtype: torch.dtype,
    parts: int,
    fold: int,
    pairwise: bool,
    wide: bool,
    check: bool,
) -> Any:
    values = constants(schedule, dtype is torch.bfloat16, parts, fold, pairwise, wide, check)
    slots = (
        *(boxes_of(dtype, rows, 2) for rows in schedule.boxes), *(WORD,) * 4,
        REAL, REAL, *(WORD,) * check,
    )  # fmt: skip
    return launcher(
        "linear_product", lambda: cubin(values), slots, threads=128 * (schedule.groups + 1),
        shared=schedule.shared(parts, check), pdl=True,
    )  # fmt: skip
