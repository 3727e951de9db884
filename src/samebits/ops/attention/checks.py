"""What attention refuses, and with which words. Off the fast path: only called before a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.errors import DTypeError, ShapeError

#: Key numbers are int32 in the kernels.
MAX_KEYS = 2**31 - 1
CPU = torch.device("cpu")
Operands: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def operand(op: str, name: str, x: object, like: torch.Tensor | None = None) -> None:
    """One of Q, K, V: a dense CPU tensor of a dtype that the engine computes.

    Raises:
        DTypeError: another kind of tensor, dtype, layout or device.
    """
    if not isinstance(x, torch.Tensor):
        raise DTypeError(f"{op}: {name} must be a tensor, not {type(x).__name__}")
    if x.layout is not torch.strided or x.is_nested:
        kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        raise DTypeError(f"{op}: {name} is a {kind} tensor; pass a dense one")
    if x.is_quantized or x.dtype not in DTYPE_CODE:
        names = ", ".join(str(t).removeprefix("torch.") for t in DTYPE_CODE)
        raise DTypeError(
            f"{op}: {name} is {str(x.dtype).removeprefix('torch.')}; the contract covers {names}. "
            f"Convert {name} first"
        )
    if x.device.type != "cpu":
        raise DTypeError(f"{op}: {name} is on {x.device}; this engine computes on the CPU")
    if like is not None and x.dtype is not like.dtype:
        raise DTypeError(
            f"{op}: q is {str(like.dtype).removeprefix('torch.')} but {name} is "
            f"{str(x.dtype).removeprefix('torch.')}; give all three the same dtype"
        )


def operands(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Operands:
    """Q, K and V together: `operand` for each, after a short look that most calls pass.

    Returns:
        The three, with negations done that torch had put off.

    Raises:
        DTypeError: as `operand`.
    """
    try:
        if (
            q.dtype in DTYPE_CODE
            and q.dtype is k.dtype is v.dtype
            and q.is_cpu
            and k.is_cpu
            and v.is_cpu
            and q.layout is k.layout is v.layout is torch.strided
            and not (q.is_nested or k.is_nested or v.is_nested)
            and not (q.is_neg() or k.is_neg() or v.is_neg())
        ):
            return q, k, v
    except AttributeError:
        pass
    operand(op, "q", q)
    operand(op, "k", k, q)
    operand(op, "v", v, q)
    return q.resolve_neg(), k.resolve_neg(), v.resolve_neg()


def shapes(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Head dims, heads and keys of [..., heads, keys, dim] operands."""
    head_dims(op, q, k)
    if k.size(-3) != v.size(-3):
        raise ShapeError(f"{op}: k has {k.size(-3)} heads but v has {v.size(-3)}")
    if k.size(-2) != v.size(-2):
        raise ShapeError(f"{op}: k has {k.size(-2)} keys but v has {v.size(-2)}")
    if k.size(-2) > MAX_KEYS:
        raise ShapeError(f"{op}: {k.size(-2)} keys; at most {MAX_KEYS} are supported")


def heads(op: str, q_heads: int, kv_heads: int, enable_gqa: bool) -> None:
    """Query heads must be a multiple of KV heads (and equal without `enable_gqa`)."""
    if not enable_gqa:
        raise ShapeError(f"{op}: {q_heads} query and {kv_heads} KV heads need enable_gqa=True")
    if kv_heads == 0 or q_heads % kv_heads:
        raise ShapeError(f"{op}: {q_heads} query heads are not a multiple of {kv_heads} KV heads")


def head_dims(op: str, q: torch.Tensor, k: torch.Tensor) -> None:
    """Q and K must have one head dimension."""
    if q.size(-1) != k.size(-1):
        raise ShapeError(f"{op}: head dim of q is {q.size(-1)} but of k is {k.size(-1)}")


def options(op: str, window: int | None, softcap: float | None, scale: float) -> None:
    """Window, cap and scale in their ranges."""
    if window is not None and window < 1:
        raise ShapeError(f"{op}: window={window} sees no key; use at least 1, or None")
    if softcap is not None and not 0 < softcap < float("inf"):
        raise ShapeError(f"{op}: softcap={softcap} must be positive and finite, or None")
    if scale != scale or scale in (float("inf"), float("-inf")):
        raise ShapeError(f"{op}: scale={scale} is not finite")


def mask(op: str, m: torch.Tensor, q: torch.Tensor, target: Sequence[int]) -> None:
    """A boolean or floating mask that broadcasts to `target` = [..., heads, q_len, kv_len]."""
    operand_like = m.layout is torch.strided and m.device == q.device and not m.is_nested
    if not operand_like or not (m.dtype is torch.bool or m.dtype.is_floating_point):
        raise DTypeError(
            f"{op}: a mask is a dense bool or floating tensor on {q.device}, not {m.dtype} "
            f"{m.layout} on {m.device}"
        )
    if m.dim() > len(target) or any(
        a not in (1, b) for a, b in zip(reversed(m.shape), reversed(target), strict=False)
    ):
        raise ShapeError(f"{op}: mask {tuple(m.shape)} does not broadcast to {tuple(target)}")


def writable(op: str, name: str, x: torch.Tensor) -> None:
    """What a kernel writes to holds its numbers as they are.

    Raises:
        DTypeError: a view of which torch has put off the negation.
    """
    if x.is_neg():
        raise DTypeError(f"{op}: {name} is a negated view; results cannot be written to it")


def apart(op: str, out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """What a kernel writes to is nothing that it still reads.

    Raises:
        ShapeError: `out` shares memory with an operand; or lies between its elements so that no one
            pitch tells them apart.
    """
    memory = out.untyped_storage()
    start, stop = memory.data_ptr(), memory.data_ptr() + memory.nbytes()
    for name, x in (("q", q), ("k", k), ("v", v)):
        memory = x.untyped_storage()
        first = memory.data_ptr()
        if first < stop and start < first + memory.nbytes() and _meet(out, x):
            raise ShapeError(
                f"{op}: out shares memory with {name}, so results would be written over what is "
                f"still read; pass another tensor, or a copy of {name}"
            )


def _meet(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors share bytes, unless their extents or a pitch show that they do not."""
    if not x.numel() or not y.numel():
        return False
    (a, *axes), (b, *others) = _axes(x), _axes(y)
    size_a, size_b = (1 + sum(end for _, end in of) for of in (axes, others))
    if a + size_a <= b or b + size_b <= a:
        return False
    # Strides that are multiples of a pitch leave its remainders where they are.
    for pitch in {stride for stride, _ in (*axes, *others)}:
        width_a, width_b = (1 + sum(e for s, e in of if s % pitch) for of in (axes, others))
        after = (b - a) % pitch
        if width_a <= after and after + width_b <= pitch:
            return False
    return True


def _axes(x: torch.Tensor) -> tuple[Any, ...]:
    """Address of a tensor, and of each axis the stride and the last offset; all in bytes."""
    item = x.element_size()
    axes = [(s * item, (n - 1) * s * item) for n, s in zip(x.shape, x.stride(), strict=True)]
    return x.data_ptr(), (1, item - 1), *(axis for axis in axes if axis[1])


def no_scales(op: str, *scales: object) -> None:
    """The scales of fp8 keys and values have no meaning on the CPU engine."""
    if any(scale is not None for scale in scales):
        raise DTypeError(f"{op}: k_scale and v_scale are for float8_e4m3fn k and v on a GPU")


def sink_logits(
    op: str, sinks: torch.Tensor, q_heads: int, device: torch.device = CPU
) -> torch.Tensor:
    """Sinks as a contiguous fp32 tensor [heads]."""
    if sinks.layout is not torch.strided or not sinks.dtype.is_floating_point:
        raise DTypeError(f"{op}: sinks must be a dense floating tensor, not {sinks.dtype}")
    if sinks.device != device:
        raise DTypeError(f"{op}: sinks are on {sinks.device}, but q is on {device}")
    if sinks.shape != (q_heads,):
        raise ShapeError(f"{op}: sinks have shape {tuple(sinks.shape)}, not ({q_heads},)")
    return sinks.to(torch.float32).resolve_neg().contiguous()


def offsets(op: str, name: str, cu: torch.Tensor, total: int) -> torch.Tensor:
    """Cumulative lengths: integers, from 0, never falling, ending at `total`."""
    cu = integers(op, name, cu, 1)
    steps = cu.diff()
    if cu.numel() < 1 or int(cu[0]) != 0 or int(cu[-1]) != total or bool((steps < 0).any()):
        raise ShapeError(
            f"{op}: {name} must start at 0, never fall and end at {total}; got {cu.tolist()[:8]}"
        )
    return cu


def integers(op: str, name: str, x: object, dim: int) -> torch.Tensor:
    """An integer CPU tensor of `dim` dimensions, as contiguous int64."""
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.int32, torch.int64):
        got = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        raise DTypeError(f"{op}: {name} must be an int32 or int64 tensor, not {got}")
    if x.device.type != "cpu" or x.layout is not torch.strided:
        raise DTypeError(f"{op}: {name} must be a dense CPU tensor")
    if x.dim() != dim:
        raise ShapeError(f"{op}: {name} must have {dim} dimension(s), not shape {tuple(x.shape)}")
    return x.to(torch.int64).contiguous()


def ambiguous_start(op: str, q_len: int, kv_len: int) -> NoReturn:
    raise ShapeError(
        f"{op}: causal or window with {q_len} queries and {kv_len} keys: say where the queries "
        f"stand. q_start={kv_len - q_len} puts them at the end (decode, chunks), q_start=0 at the "
        "beginning (torch's is_causal)"
    )
