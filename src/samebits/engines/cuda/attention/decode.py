"""Launches the Hopper decode kernel by a contract and a schedule: the bits of every other schedule.

It is for what leaves a chip idle otherwise: few sequences, one position each, many keys. What it
takes is narrower than attention's contract (see `covers`); the rest is the Triton kernels'.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import torch

from samebits.contract import AttentionContract, path
from samebits.engines import tickets
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.attention.schedule import DecodeSchedule
from samebits.engines.cuda.launch import REAL, WORD, Boxes, boxes_of, launcher, readable

_HERE = Path(__file__).parent
_HEADERS = (*sorted(_HERE.glob("*.cuh")), _HERE.parent / "path.cuh")
_LOG2E = math.log2(math.e)

HEAD_DIMS = (64, 128)
#: Query heads of a KV head that one tile holds, keys of a step, keys of a bulk copy.
ROWS, STEP, BOXES = 64, 64, (16, 32, 64)
_THREADS, _STAGES, _FOLD_THREADS, _FOLD_COLUMNS = 160, 3, 64, 32
#: From so many leaves on the fold takes them in larger blocks.
_LONG = 64


def covers(
    contract: AttentionContract, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, page: int | None
) -> bool:
    """Whether the kernel takes q [b, h, d] over k and v [b, h, t, d], or pages of `page` keys.

    It wants columns side by side, 16-byte aligned rows, and no axis of stride 0.
    """
    d = q.size(-1)
    return (
        d in HEAD_DIMS
        and v.size(-1) == d
        and q.size(-2) <= ROWS * k.size(1)
        and contract.maximum == "ceil(64)"
        and contract.kv == contract.input
        and contract.leaf % STEP == 0
        and contract.exp2 == "hw"
        and (page is None or page in BOXES or page % STEP == 0)
        and all(readable(x) for x in (q, k, v))
    )


def decode(
    contract: AttentionContract,
    schedule: DecodeSchedule,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    keys: int,
    counts: torch.Tensor | None = None,
    added: int = 0,
    window: int = 0,
    table: torch.Tensor | None = None,
) -> None:
    """Attention of one query position a sequence into `out`, on the current stream.

    Args:
        q, out: [b, h, d].
        k, v: [b, h / group, t, d]; with `table`, pages [n, h / group, page, d].
        scale: positive factor of the scores.
        keys: that a row sees at most; with `counts`, as many as a sequence can have.
        counts, added: int32 [b]; sequence i sees min(counts[i] + added, keys) keys.
        window: only so many keys before the row's end are seen; 0: all.
        table: int32 [b, pages], numbers of pages.
    """
    batch, heads, d = q.shape
    kv_heads = k.size(1)
    group, leaves = heads // kv_heads, -(-keys // contract.leaf)
    if out.numel() == 0:
        return
    if leaves == 0:
        out.zero_()
        return
    # With a table, `keys` is what it can hold: a sequence may have far fewer, and most blocks none.
    blocks = schedule.blocks * (1 if table is None else 2)
    runs = min(leaves, max(1, blocks // (batch * kv_heads)))
    page = k.size(2) if table is not None else 1
    box = STEP if table is None else min(STEP, page)
    partial = q.new_empty(batch * heads * leaves * d, dtype=torch.float32)
    sums = q.new_empty(batch * heads * leaves * 2, dtype=torch.float32)
    seals: tuple[torch.Tensor | int, ...] = ()
    if tickets.checking():
        # A seal a leaf: its word, the sum of its maximum and denominator, those of its slices.
        size = 2 + d // _FOLD_COLUMNS
        memory = q.new_empty(batch * heads * leaves * size, dtype=torch.int64)
        subject = tickets.Subject("attention", contract.id, repr(schedule))
        ticket = tickets.ticket(q.device, subject, path.seed(contract), contract.leaf)
        seals = (memory, ticket.data_ptr())
    kernel = (d, contract.leaf, q.dtype, box, bool(seals))
    stride = 0 if table is None else table.stride(0)
    _decode_launcher(*kernel)(
        (batch * kv_heads * runs,), Boxes(k, box), Boxes(v, box), q, *q.stride()[:2],
        counts, added, keys, table, stride, page, partial, sums, group, leaves, runs, window,
        scale * _LOG2E, *seals,
    )  # fmt: skip
    _fold_launcher(*kernel, leaves > _LONG)(
        (batch * heads * d // _FOLD_COLUMNS,), out, *out.stride()[:2], counts, added, keys, partial,
        sums, kv_heads, group, leaves, window, *seals,
    )  # fmt: skip


def constants(d: int, leaf: int, bf16: bool, box: int, check: bool = False) -> dict[str, int]:
    """The kernels' compile-time parameters."""
    return {"HEAD_DIM": d, "LEAF": leaf, "BF16": int(bf16), "BOX": box, "CHECK": int(check)}


def cubin(values: dict[str, int]) -> bytes:
    """The compiled kernels."""
    return nvrtc.compile_source(_HERE / "decode.cu", "sm_90a", values, _HEADERS)


@functools.cache
def _decode_launcher(d: int, leaf: int, dtype: torch.dtype, box: int, check: bool) -> Any:
    keys = boxes_of(dtype, box)
    values = constants(d, leaf, dtype is torch.bfloat16, box, check)
    return launcher(
        "attention_decode", lambda: cubin(values),
        (keys, keys, *(WORD,) * 15, REAL, *(WORD,) * (2 * check)),
        threads=_THREADS, shared=(1 + 2 * _STAGES) * 2 * STEP * d + 256 + 8 * 4 * _STAGES, pdl=True,
    )  # fmt: skip


@functools.cache
def _fold_launcher(d: int, leaf: int, dtype: torch.dtype, box: int, check: bool, long: bool) -> Any:
    values = constants(d, leaf, dtype is torch.bfloat16, box, check)
    name = "attention_fold_long" if long else "attention_fold"
    return launcher(
        name, lambda: cubin(values), (WORD,) * (12 + 2 * check), threads=_FOLD_THREADS, pdl=True
    )  # fmt: skip
