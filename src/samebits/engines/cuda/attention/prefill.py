"""Launches the Hopper prefill kernel by a contract and a schedule.

Its bits are those of every other schedule of the contract. What it takes is narrower (see
`covers`); the rest is the Triton kernels'.
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
from samebits.engines.cuda.attention.schedule import PrefillSchedule
from samebits.engines.cuda.launch import REAL, WORD, Boxes, boxes_of, launcher, readable

_HERE = Path(__file__).parent
_HEADERS = (*sorted(_HERE.glob("*.cuh")), _HERE.parent / "path.cuh")
_LOG2E = math.log2(math.e)

HEAD_DIMS = (64, 128)
#: Query rows and keys of a tile; the launch's shape, as in prefill.cu.
ROWS, _KEYS, _THREADS, _STAGES = 128, 128, 384, 2


def covers(
    contract: AttentionContract,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    copies: bool = False,
) -> bool:
    """Whether the kernel takes these operands, [b, h, t, d], of this contract.

    It wants columns side by side, 16-byte aligned rows, and no axis of stride 0.

    Args:
        copies: it would be given dense copies of k and v, pages [n, page, h, d].
    """
    d = q.size(-1)
    return (
        d in HEAD_DIMS
        and k.size(2) > 0
        and v.size(-1) == d
        and contract.maximum == "ceil(64)"
        and contract.kv == contract.input
        and contract.leaf % _KEYS == 0
        and contract.exp2 == "hw"
        and all(readable(x) for x in ((q,) if copies else (q, k, v)))
    )


def prefill(
    contract: AttentionContract,
    schedule: PrefillSchedule,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    causal: bool,
    position: int = 0,
    positions: torch.Tensor | None = None,
    query_starts: torch.Tensor | None = None,
    key_starts: torch.Tensor | None = None,
    lengths: tuple[int, int] | None = None,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> None:
    """Attention of `q` over `k` and `v` into `out`, on the current stream.

    Args:
        q, out: [b, h, t, d]; packed sequences have b = 1 and lie one after the other along t.
        k, v: [b, h / group, s, d], or packed alike.
        scale: positive factor of the scores.
        causal: row t of a sequence sees keys up to its position + t.
        position, positions: of the sequences' first rows among the keys, the same for all or int32
            [sequences]. Packed sequences without `positions` end where their keys end.
        query_starts, key_starts: int32 [sequences + 1], rows before each packed sequence.
        lengths: rows and keys of the longest packed sequence, or more.
        window: a row sees keys less than this away from its own position; 0: all.
        sinks: fp32 [h], a logit that takes part in every row's denominator, or None.
        lse: fp32 [b, h, t] for the logsumexps of the rows, packed alike, or None.
    """
    if out.numel() == 0:
        return
    b, heads, t, d = q.shape
    sequences = b if query_starts is None else query_starts.numel() - 1
    rows, keys = lengths or (t, k.size(2))
    group = heads // k.size(1)
    cluster = schedule.cluster if group % schedule.cluster == 0 else 1
    resident = schedule.resident // (2 * 2 * d * max(keys, 1))
    section = min(sequences * heads, max(1, resident) * group)
    work = -(-rows // ROWS) * sequences * heads
    blocks = min(_processors(q.device.index) // cluster * cluster, work)
    ticket: tuple[int, ...] = ()
    if tickets.checking():
        subject = tickets.Subject("attention", contract.id, repr(schedule))
        made = tickets.ticket(q.device, subject, path.seed(contract), contract.leaf)
        ticket = (made.data_ptr(),)
    run = _launcher(d, contract.leaf, causal, q.dtype, cluster, bool(ticket))
    run(
        (blocks,), Boxes(q, ROWS), Boxes(k, _KEYS // cluster), Boxes(v, _KEYS // cluster),
        out, *out.stride()[:3], query_starts, key_starts, positions, rows, keys, position,
        sequences, section, window, sinks, lse, *((0, 0, 0) if lse is None else lse.stride()),
        scale * _LOG2E, *ticket,
    )  # fmt: skip


@functools.cache
def _processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def constants(
    d: int, leaf: int, causal: bool, bf16: bool, cluster: int, check: bool = False
) -> dict[str, int]:
    """The kernel's compile-time parameters."""
    return {
        "HEAD_DIM": d, "LEAF": leaf, "CAUSAL": int(causal), "BF16": int(bf16), "CLUSTER": cluster,
        "CHECK": int(check),
    }  # fmt: skip


def cubin(values: dict[str, int]) -> bytes:
    """The compiled kernel."""
    return nvrtc.compile_source(_HERE / "prefill.cu", "sm_90a", values, _HEADERS)


@functools.cache
def _launcher(
    d: int, leaf: int, causal: bool, dtype: torch.dtype, cluster: int, check: bool
) -> Any:
    keys = boxes_of(dtype, _KEYS // cluster)
    slots = (boxes_of(dtype, ROWS), keys, keys, *(WORD,) * 18, REAL, *(WORD,) * check)
    values = constants(d, leaf, causal, dtype is torch.bfloat16, cluster, check)
    return launcher(
        "attention_prefill", lambda: cubin(values), slots, threads=_THREADS, shared=_shared(d)
    )


def _shared(d: int) -> int:
    """Bytes of Q, the ring of K and V, the total in fp32, ones, barriers, what was found."""
    tile = 2 * _KEYS * d
    return (1 + 2 * _STAGES) * tile + 4 * ROWS * d + 256 + 128 + 16
