"""Attention on a GPU: the contract, the plan's schedule, the kernels of engines/triton.

The functions have the signatures of the CPU engine's. Nothing here waits for the device, so that
all of it can be captured in a CUDA graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from samebits.contract import AttentionContract, ContractKey
from samebits.contract.operands import dtype_name
from samebits.engines import family, watch
from samebits.engines.triton import contract_class
from samebits.engines.triton.attention import run
from samebits.engines.triton.attention.schedule import AttentionSchedule
from samebits.errors import DTypeError, ShapeError, UncoveredError
from samebits.ops.attention import checks
from samebits.ops.gpu import recorded
from samebits.plan.contracts import contract_for
from samebits.plan.planner import row_for

Sequences = run.Sequences
#: Head dimensions that the kernels' tiles hold.
MAX_HEAD_DIM = 256
FP8 = torch.float8_e4m3fn
_PORTABLE_FP32 = (torch.float32, True)


def operands(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> checks.Operands:
    """Q, K and V: dense tensors of one GPU, bf16 or fp16; K and V alike, or e4m3.

    Returns:
        The three, with negations done that torch had put off.

    Raises:
        DTypeError: another kind of tensor, dtype, layout or device.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_nested:
            raise DTypeError(f"{op}: {name} must be a dense tensor")
        if x.device != q.device:
            raise DTypeError(f"{op}: q is on {q.device} but {name} is on {x.device}")
    portable = family.portable()
    if q.dtype not in (torch.bfloat16, torch.float16) and (q.dtype, portable) != _PORTABLE_FP32:
        raise DTypeError(
            f"{op}: q is {_name(q)}; on a GPU the contract covers bfloat16 and float16. Convert q, "
            'k and v first, or put the portable contracts in force: contract="portable"'
        )
    if portable and not q.dtype is k.dtype is v.dtype:
        raise DTypeError(f"{op}: the portable contract takes q, k and v of one dtype")
    if k.dtype is not v.dtype or k.dtype not in (q.dtype, FP8):
        raise DTypeError(
            f"{op}: q is {_name(q)}, k {_name(k)} and v {_name(v)}; give all three the same dtype, "
            "or k and v as float8_e4m3fn"
        )
    for name, size in (("D", q.size(-1)), ("Dv", v.size(-1))):
        if size > MAX_HEAD_DIM:
            raise ShapeError(f"{op}: head dim {name} = {size}; at most {MAX_HEAD_DIM} are covered")
    if q.is_neg() or k.is_neg() or v.is_neg():
        return q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
    return q, k, v


def _name(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def scales(
    op: str,
    name: str,
    x: torch.Tensor | float | None,
    q: torch.Tensor,
    kv: torch.Tensor,
    heads: int,
) -> torch.Tensor | None:
    """The static factor of an fp8 K or V, one for each KV head, in fp32 on the device.

    Raises:
        DTypeError, ShapeError: not a number or a floating tensor of 1 or `heads` elements; K and V
            are not fp8.
    """
    if x is None:
        return None
    if kv.dtype is not FP8:
        raise DTypeError(f"{op}: {name} is for k and v of float8_e4m3fn, not {_name(kv)}")
    if not isinstance(x, torch.Tensor):
        return torch.full((heads,), x, dtype=torch.float32, device=q.device)
    if not x.dtype.is_floating_point or x.device != q.device:
        raise DTypeError(f"{op}: {name} must be a floating tensor on {q.device}")
    if x.numel() not in (1, heads):
        raise ShapeError(
            f"{op}: {name} has {x.numel()} elements: give one, or one for each KV head"
        )
    return x.to(torch.float32).resolve_neg().reshape(-1).expand(heads).contiguous()


@functools.lru_cache(maxsize=256)
def _key(q: torch.dtype, kv: torch.dtype, d: int, dv: int, device: str) -> ContractKey:
    name = dtype_name(q)
    return ContractKey(
        op="attention", dtype=name, out_dtype=name, device=device, head_dim=d,
        value_dim=dv, kv_dtype=None if kv is q else dtype_name(kv),
    )  # fmt: skip


class _Wanted(threading.local):
    """What a thread runs instead of the plan's schedule."""

    schedule: Callable[[AttentionSchedule], AttentionSchedule] | None = None


_wanted = _Wanted()


@contextmanager
def scheduled(change: Callable[[AttentionSchedule], AttentionSchedule]) -> Iterator[None]:
    """Calls of this thread in the block run by ``change(the plan's schedule)``."""
    before, _wanted.schedule = _wanted.schedule, change
    try:
        yield
    finally:
        _wanted.schedule = before


def contract_and_schedule(
    q: torch.Tensor, v: torch.Tensor, group: int, q_len: int
) -> tuple[AttentionContract, AttentionSchedule]:
    """What decides the bits of an attention, and how it runs."""
    return _plan(q, v, group, q_len)


def _plan(
    q: torch.Tensor, v: torch.Tensor, group: int, q_len: int
) -> tuple[AttentionContract, AttentionSchedule]:
    """The contract, and the schedule for `q_len` positions of `group` heads."""
    device = contract_class(q.device.index or 0)
    key = _key(q.dtype, v.dtype, q.size(-1), v.size(-1), device)
    contract, schedule = contract_for(key), row_for(key, group=group).at(q_len * group)
    assert isinstance(contract, AttentionContract)
    assert isinstance(schedule, AttentionSchedule)
    return contract, schedule if _wanted.schedule is None else _wanted.schedule(schedule)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """`x` with contiguous columns: the only stride that the kernels do not take."""
    return x if x.stride(-1) == 1 or x.size(-1) <= 1 else x.contiguous()


def dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    causal: bool = False,
    q_start: int = 0,
    q_starts: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    lse: bool = False,
) -> run.Result:
    """Attention over [B, H, T, D] tensors of any strides; see `samebits.ops.attention`.

    Returns:
        The result [B, Hq, Tq, Dv], laid out like [B, Tq, Hq, Dv] in memory when `q` is, and the
        logsumexp [B, Hq, Tq] in fp32 or None.
    """
    # Who watches this function hinders the replay of what calls it; what it calls may be replayed.
    compute = _replayed if watch.watched() and _wanted.schedule is None else _dense
    result: run.Result = compute(
        q, k, v, scale, causal, q_start, q_starts, mask, window, softcap, sinks, k_scale, v_scale,
        lse,
    )  # fmt: skip
    return result


def _dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    q_start: int,
    q_starts: torch.Tensor | None,
    mask: torch.Tensor | None,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    lse: bool,
) -> run.Result:
    """`dense` with all its arguments by their places."""
    batch, heads, q_len, _ = q.shape
    contract, schedule = _plan(q, v, heads // max(1, k.size(1)), q_len)
    masked_at = 0.0
    if mask is not None:
        if mask.dtype is torch.float64:  # rounds to -Inf or to the lowest fp32 below this
            mask = mask.to(torch.float32)
        if mask.dtype is not torch.bool:
            masked_at = torch.finfo(mask.dtype).min
        mask = mask.expand(batch, heads, q_len, k.size(2))
    options = run.Options(scale, causal, window, softcap, sinks, k_scale, v_scale, lse)
    return run.dense(
        contract, schedule, _rows(q), _rows(k), _rows(v), options, q_start=q_start,
        starts=q_starts, mask=mask, masked_at=masked_at,
    )  # fmt: skip


_replayed = recorded(_dense)


def packed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sequences: run.Sequences,
    out: torch.Tensor | None = None,
    **options: Any,
) -> run.Result:
    """Attention over packed queries [total, H, D]; K and V packed alike, or pages of a cache.

    Args:
        out: as `run.packed`.
        options: of `run.Options`.

    Returns:
        The result [total, Hq, Dv] and the logsumexp [Hq, total] in fp32 or None.
    """
    group = q.size(1) // max(1, k.size(-2))
    contract, schedule = _plan(q, v, group, sequences.longest_q)
    return run.packed(
        contract, schedule, _rows(q), _rows(k), _rows(v), run.Options(**options), sequences, out
    )


def integers(op: str, name: str, x: object, dim: int, device: torch.device) -> torch.Tensor:
    """An int32 or int64 tensor of `dim` dimensions on `device`, contiguous, its values not read.

    Raises:
        DTypeError, ShapeError: another kind of tensor.
    """
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.int32, torch.int64):
        got = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        raise DTypeError(f"{op}: {name} must be an int32 or int64 tensor, not {got}")
    if x.device != device or x.layout is not torch.strided:
        raise DTypeError(f"{op}: {name} must be a dense tensor on {device}, like q")
    if x.dim() != dim:
        raise ShapeError(f"{op}: {name} must have {dim} dimension(s), not shape {tuple(x.shape)}")
    return x.contiguous()


def longest(op: str, name: str, given: int | None, offsets: torch.Tensor) -> int:
    """The longest sequence of cumulative offsets: what the caller says, else read from the device.

    Raises:
        UncoveredError: it would have to be read while a CUDA graph is captured.
    """
    if given is not None:
        return given
    if offsets.numel() < 2:
        return 0
    if torch.cuda.is_current_stream_capturing():
        raise UncoveredError(
            op, "the longest sequence cannot be read from the device in a graph capture",
            remedy=f"Pass {name}=, the longest one that the graph may see.",
        )  # fmt: skip
    return int(offsets.diff().max())


watch.offer(__name__, dense, packed)
