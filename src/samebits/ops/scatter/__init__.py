"""Adding into scattered places: index_add, scatter_add, index_put(accumulate), bincount, histogram.

Contract: a place starts from its old value (float32 accumulator), takes its sources in ascending
source order by single IEEE operations, and is rounded once to the output type. There are no float
atomics, so the number of threads and the layout of the operands cannot matter. float64 works the
same way with a float64 accumulator; integers are exact and need no contract.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu import order as engine
from samebits.engines.cpu.order import Combine
from samebits.errors import DTypeError, ShapeError
from samebits.ops.checks import one_device

REDUCE: dict[str, Combine] = {
    "sum": "add",
    "add": "add",
    "mean": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "amax",
    "amin": "amin",
}
_IDENTITY = {"add": 0.0, "mul": 1.0, "amax": -math.inf, "amin": math.inf}


def index_add(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, alpha: float = 1.0
) -> torch.Tensor:
    """``x`` with ``alpha * source`` added to its slices `index` along `dim`, in index order.

    Args:
        x: any shape, float32, bfloat16, float16 or float64.
        index: 1-D int32 or int64 [n]; values in 0..x.shape[dim]-1, repeats allowed.
        source: x's shape with size n along `dim`, x's dtype.

    Raises:
        ShapeError, DTypeError: operands do not fit.
        IndexError: an index is out of range.
    """
    return _index_reduce("index_add", x, dim, index, source, "add", True, alpha)


def index_reduce(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    include_self: bool = True,
) -> torch.Tensor:
    """Like `index_add` with reduce = "prod", "mean", "amax" or "amin" (``torch.index_reduce``)."""
    return _index_reduce("index_reduce", x, dim, index, source, reduce, include_self, 1.0)


def scatter_add(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """``out[.., index[e], ..] += src[e]`` for every element e of `index`, ascending along `dim`."""
    return scatter_reduce(x, dim, index, src, "sum")


def scatter_reduce(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    include_self: bool = True,
) -> torch.Tensor:
    """``torch.scatter_reduce``: reduce = "sum", "prod", "mean", "amax" or "amin".

    Args:
        x: any shape, float32, bfloat16, float16 or float64.
        index: int64, as many dims as `x`, no larger than `src` anywhere, nor than `x` off `dim`.
        src: x's dtype.

    Raises:
        ShapeError, DTypeError: operands do not fit.
        IndexError: an index is out of range.
    """
    _check_dtypes("scatter_reduce", x, src)
    if x.dim() == 0:
        args = (index.reshape(-1), src.reshape(-1), reduce, include_self)
        return scatter_reduce(x[None], 0, *args)[0]
    if index.dim() != x.dim() or src.dim() != x.dim():
        raise ShapeError(
            f"scatter_reduce: x, index and src need equally many dims, not {x.dim()}, "
            f"{index.dim()} and {src.dim()}"
        )
    dim %= x.dim()
    for d, size in enumerate(index.shape):
        if size > src.shape[d] or (d != dim and size > x.shape[d]):
            raise ShapeError(
                f"scatter_reduce: index {tuple(index.shape)} is larger than src "
                f"{tuple(src.shape)} or, off dim {dim}, than x {tuple(x.shape)}"
            )
    _check_range("scatter_reduce", index, x, dim)
    corner = tuple(slice(0, size) for size in index.shape)
    positions = index.to(torch.int64) * math.prod(x.shape[dim + 1 :])
    for d, size in enumerate(index.shape):  # the other coordinates of every element
        if d != dim:
            step = math.prod(x.shape[d + 1 :])
            shape = [1] * x.dim()
            shape[d] = size
            along = torch.arange(size, device=x.device) * step
            positions = positions + along.view(shape)
    return _reduce_into(x, positions.reshape(-1), src[corner].reshape(-1, 1), reduce, include_self)


def index_put_accumulate(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor
) -> torch.Tensor:
    """``x[indices] += values`` counting every repeat, in the row-major order of the indices.

    Args:
        x: any shape, float32, bfloat16, float16 or float64.
        indices: integer or boolean tensors as in ``x[...]``; None keeps a whole dimension.
        values: broadcast to the shape of ``x[indices]``; x's dtype.
    """
    _check_dtypes("index_put", x, values)
    used = [i is not None for i in indices]
    rest = used.index(False) if False in used else len(indices)
    lead = x.dim()
    if all(used[:rest]) and not any(used[rest:]):  # trailing dims are whole: move them as rows
        lead = sum(
            i.dim() if i.dtype in (torch.bool, torch.uint8) else 1 for i in indices if i is not None
        )
    inner = math.prod(x.shape[lead:])
    places = torch.arange(math.prod(x.shape[:lead]), device=x.device).view(x.shape[:lead])
    key = tuple(slice(None) if i is None else i for i in indices)
    hit = places[key[:rest] if lead < x.dim() else key]
    src = values.expand(*hit.shape, *x.shape[lead:])
    return _reduce_into(x, hit.reshape(-1), src.reshape(hit.numel(), inner), "sum", True)


def bincount(x: torch.Tensor, weights: torch.Tensor, minlength: int = 0) -> torch.Tensor:
    """Sum of `weights` [n] for each value of the non-negative integers `x` [n], in order of n.

    Returns float32 for float32 weights and float64 for all others, as ``torch.bincount``.
    """
    if x.dim() != 1 or weights.shape != x.shape:
        raise ShapeError(
            f"bincount: x and weights need one dim and one size, not {tuple(x.shape)} and "
            f"{tuple(weights.shape)}"
        )
    one_device("bincount", x, weights)
    if minlength < 0:
        raise ShapeError(f"bincount: minlength={minlength} is negative")
    if x.numel() and int(x.min()) < 0:
        raise IndexError("bincount: x holds a negative value")
    size = max(minlength, int(x.max()) + 1 if x.numel() else 0)
    dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    zeros = torch.zeros(size, dtype=dtype, device=x.device)
    src = weights.to(dtype).reshape(-1, 1)
    return _reduce_into(zeros, x.to(torch.int64).contiguous(), src, "sum", True)


def histogram(
    x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor | None = None, density: bool = False
) -> torch.Tensor:
    """Weight that falls in each bin [edges[i], edges[i+1]) (the last one closed), in order of `x`.

    Args:
        x: any shape, float32 or float64.
        edges: [bins + 1], ascending, x's dtype.
        weight: x's shape and dtype, or None to count.

    Raises:
        ShapeError: fewer than two edges, or edges that descend.
    """
    bins = edges.numel() - 1
    if edges.dim() != 1 or bins < 1 or bool((edges[1:] < edges[:-1]).any()):
        raise ShapeError(
            f"histogram: edges {tuple(edges.shape)} must be 1-D, at least two, ascending"
        )
    flat = x.reshape(-1)
    bin_of = torch.searchsorted(edges.contiguous(), flat.contiguous(), right=True) - 1
    bin_of[flat == edges[-1]] = bins - 1
    outside = (flat < edges[0]) | (flat > edges[-1]) | flat.isnan()
    bin_of[outside] = -1
    src = (
        torch.ones((1, 1), dtype=x.dtype, device=x.device)
        if weight is None
        else weight.reshape(-1, 1)
    )
    out = torch.zeros(bins, dtype=x.dtype, device=x.device)
    out = _reduce_into(out, bin_of, src.expand(flat.numel(), 1), "sum", True)
    if density:
        total = _reduce_into(
            torch.zeros(1, dtype=x.dtype, device=x.device),
            torch.zeros(bins, dtype=torch.int64, device=x.device),
            out[:, None],
            "sum",
            True,
        )
        out = _finished(out / total / edges.diff(), x.dtype)
    return out


def segment_reduce(
    data: torch.Tensor, lengths: torch.Tensor, reduce: str, initial: float | None = None
) -> torch.Tensor:
    """Reduces consecutive stretches of `data` along its first axis.

    Args:
        data: [n, ...], float32, bfloat16, float16 or float64.
        lengths: [segments] int, non-negative, of sum n.
        reduce: "sum", "mean", "prod", "max" or "min".
        initial: what an accumulator starts from (default: the identity; NaN for an empty mean).
    """
    if lengths.dim() != 1 or int(lengths.sum()) != data.shape[0]:
        raise ShapeError(
            f"segment_reduce: lengths {tuple(lengths.shape)} must add up to {data.shape[0]}"
        )
    one_device("segment_reduce", data, lengths)
    name = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    segments = torch.arange(lengths.numel(), device=data.device)
    segments = segments.repeat_interleave(lengths.to(torch.int64))
    start = _IDENTITY[_combine("segment_reduce", name)] if initial is None else initial
    acc = data.new_full((lengths.numel(), *data.shape[1:]), start)
    if name != "mean":
        return _reduce_into(acc, segments, _rows(data), name, True)
    wide = _accumulators(acc)
    _engine(data).scatter(wide.view(lengths.numel(), -1), segments, _rows(data))
    counts = lengths.to(wide.dtype).view(-1, *[1] * (data.dim() - 1))
    mean = wide / counts
    if initial is not None:
        mean = torch.where(counts == 0, wide, mean)
    return _finished(mean, data.dtype)


def _index_reduce(
    op: str,
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    include_self: bool,
    alpha: float,
) -> torch.Tensor:
    _check_dtypes(op, x, source)
    if x.dim() == 0:
        return _index_reduce(op, x[None], 0, index.reshape(-1), source.reshape(-1), reduce,
                             include_self, alpha)[0]  # fmt: skip
    dim %= x.dim()
    want = (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :])
    if index.dim() > 1 or tuple(source.shape) != want:
        raise ShapeError(
            f"{op}: index {tuple(index.shape)} must be 1-D and source {tuple(source.shape)} must "
            f"be {want} for x {tuple(x.shape)} and dim {dim}"
        )
    _check_range(op, index, x, dim)
    first = x.movedim(dim, 0)
    rows = source.movedim(dim, 0).flatten(1) if x.dim() > 1 else source[:, None]
    out = _reduce_into(first, index.reshape(-1).to(torch.int64), rows, reduce, include_self, alpha)
    return out.movedim(0, dim).contiguous()


def _reduce_into(
    x: torch.Tensor,
    positions: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    include_self: bool,
    alpha: float = 1.0,
) -> torch.Tensor:
    """`src` [n, inner] combined into places of a copy of x viewed as [-1, inner]."""
    combine = _combine("scatter_reduce", reduce)
    acc = _accumulators(x)
    places = acc.view(-1, src.shape[1]) if src.shape[1] else acc.view(0, 0)
    positions = positions.contiguous()
    if not include_self:
        places[positions] = _IDENTITY[combine]
    _engine(x).scatter(places, positions, _rows(src), combine, alpha)
    if reduce == "mean":
        counts = torch.zeros(places.shape[0], dtype=torch.int64, device=x.device)
        counts.index_add_(0, positions, torch.ones_like(positions))
        counts = counts + 1 if include_self else counts.clamp(min=1)
        places.div_(counts.to(acc.dtype)[:, None])
    return _finished(acc, x.dtype)


def _accumulators(x: torch.Tensor) -> torch.Tensor:
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    acc = torch.empty(x.shape, dtype=wide, device=x.device)
    return acc.copy_(x)


def _finished(acc: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`acc` (contiguous) rounded once to `dtype`; every NaN becomes the canonical one."""
    if dtype is torch.float64:
        return acc.masked_fill_(acc.isnan(), math.nan)
    out: torch.Tensor = _engine(acc).narrow(acc, dtype)
    return out


def _rows(src: torch.Tensor) -> torch.Tensor:
    src = src.flatten(1) if src.dim() > 1 else src[:, None]
    src = src.resolve_neg() if src.is_neg() else src
    return src if src.shape[1] <= 1 or src.stride(1) == 1 else src.contiguous()


def _combine(op: str, reduce: str) -> Combine:
    try:
        return REDUCE[reduce]
    except KeyError:
        raise ShapeError(f"{op}: reduce={reduce!r} is not one of {', '.join(REDUCE)}") from None


def _check_dtypes(op: str, x: torch.Tensor, src: torch.Tensor) -> None:
    if x.dtype not in DTYPE_CODE and x.dtype is not torch.float64:
        raise DTypeError(f"{op}: {x.dtype} is not covered; use a real floating type")
    if src.dtype != x.dtype:
        raise DTypeError(f"{op}: source is {src.dtype} but x is {x.dtype}; convert one of them")
    if x.device != src.device or x.device.type not in ("cpu", "cuda"):
        raise DTypeError(
            f"{op}: x is on {x.device} and the source on {src.device}; use one CPU or CUDA device"
        )


def _check_range(op: str, index: torch.Tensor, x: torch.Tensor, dim: int) -> None:
    """Raises IndexError; while a CUDA graph is captured, where nobody can wait, the GPU asserts.

    Raises:
        DTypeError: `index` is not where `x` is.
    """
    one_device(op, x, index)
    size = x.shape[dim]
    if not index.numel():
        return
    if index.is_cuda and torch.cuda.is_current_stream_capturing():
        torch._assert_async(((index >= 0) & (index < size)).all())
        return
    low, high = (int(v) for v in index.aminmax())
    if low < 0 or high >= size:
        raise IndexError(
            f"{op}: index {low}..{high} is out of range for a dimension of size {size}"
        )


def _engine(x: torch.Tensor) -> ModuleType:
    """What adds into places of `x`."""
    if x.is_cuda:
        from samebits.engines.triton import scatter

        return scatter
    return engine
