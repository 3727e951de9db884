"""Attention with exact sums: two exact products around an exact softmax."""

from __future__ import annotations

import itertools
import math
from numbers import Integral

import torch

from samebits.errors import DTypeError, ShapeError
from samebits.ops.checks import dense
from samebits.ops.exact.engine import canonical, checked, exp, gradual, product, rows

#: Scores that are held at a time.
_SCORES = 1 << 25
#: Where fp32 ends.
_OVERFLOW = 2.0**128 - 2.0**103


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    q_start: int | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(q k^T * scale + mask) v with exact sums; formula: `ExactContract.formula`.

    Keys may be cut, padded, masked and permuted, and rows batched, in any way: no bit shows it.

    Args:
        q: [..., Hq, T, D], fp32, bf16 or fp16.
        k: [..., Hkv, S, D], dtype of q; Hq is a multiple of Hkv.
        v: [..., Hkv, S, Dv].
        scale: factor of the scores, rounded to fp32; None: 1 / sqrt(D), or 1 without dimensions.
        causal: row i, at position q_start + i, sees the keys up to its own position.
        q_start: position of row 0; None: S - T.
        mask: broadcasts to [..., Hq, T, S]. bool: True is seen; floating: added in fp32.

    Returns:
        [..., Hq, T, Dv] in q's dtype. A row that sees no key is +0.

    Raises:
        ShapeError, DTypeError, SamebitsError: other operands; see `samebits.ops.exact`.
    """
    q, k, v = (checked("attention", x) for x in (q, k, v))
    if not (q.dtype is k.dtype is v.dtype) or not q.device == k.device == v.device:
        raise DTypeError("exact.attention: q, k and v must have one dtype and one device")
    if q.dim() < 3 or k.dim() != q.dim() or v.dim() != q.dim():
        raise ShapeError("exact.attention: q, k and v are [..., heads, length, D]")
    *lead, heads, length, d = q.shape
    kv_heads, keys = k.shape[-3:-1]
    fits = k.shape[:-3] == v.shape[:-3] == q.shape[:-3] and v.shape[-3:-1] == k.shape[-3:-1]
    if not fits or k.shape[-1] != d or not kv_heads or heads % kv_heads:
        raise ShapeError(
            f"exact.attention: q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do "
            "not fit"
        )
    scale = 1 / math.sqrt(max(d, 1)) if scale is None else scale
    if not abs(scale) < _OVERFLOW:
        raise ShapeError(f"exact.attention: scale={scale} is not finite in fp32")
    if not (q_start is None or isinstance(q_start, Integral)):
        raise DTypeError(f"exact.attention: q_start is an integer, not {type(q_start).__name__}")
    factor = torch.full((), scale, dtype=torch.float32, device=q.device)
    seen, added = _visible(q, keys, causal, q_start, mask)
    group = heads // kv_heads
    items, rows = math.prod(lead) * kv_heads, group * length  # KV heads, and rows of each
    q, k = q.reshape(items, rows, d), k.reshape(items, keys, d)
    v = v.reshape(items, keys, v.shape[-1])
    y = q.new_empty(items, rows, v.shape[-1])
    high = max(1, min(rows, _SCORES // max(1, keys)))
    wide = max(1, _SCORES // max(1, high * keys))
    for i, r in itertools.product(range(0, items, wide), range(0, rows, high)):
        at, part = slice(i, i + wide), slice(r, r + high)
        masks = (_portion(x, (*lead, kv_heads, group, length, keys), at, part)
                 for x in (seen, added))  # fmt: skip
        with gradual(q):
            y[at, part] = _attend(q[at, part], k[at], v[at], factor, *masks)
    return y.view(*lead, heads, length, v.shape[-1])


def _visible(
    q: torch.Tensor, keys: int, causal: bool, q_start: int | None, mask: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What a row sees (None: everything), and what is added to its scores."""
    length = q.shape[-2]
    seen = None
    if causal:
        start = keys - length if q_start is None else q_start
        position = start + torch.arange(length, device=q.device).unsqueeze(-1)
        seen = torch.arange(keys, device=q.device) <= position
    if mask is None:
        return seen, None
    dense("exact.attention", mask)
    if mask.device != q.device:
        raise DTypeError(f"exact.attention: mask is on {mask.device}, and q on {q.device}")
    try:
        mask.expand(*q.shape[:-1], keys)
    except RuntimeError:
        raise ShapeError(
            f"exact.attention: mask {tuple(mask.shape)} does not broadcast to "
            f"{(*q.shape[:-1], keys)}"
        ) from None
    if mask.dtype is torch.bool:
        return (mask if seen is None else mask & seen), None
    return seen, checked("attention", mask).to(torch.float32)


def _portion(
    x: torch.Tensor | None, shape: tuple[int, ...], items: slice, rows: slice
) -> torch.Tensor | None:
    """[items, rows, S] of a mask that broadcasts to `shape`: [..., Hkv, group, T, S]."""
    if x is None:
        return None
    *lead, kv_heads, group, length, keys = shape
    x = x.expand(*lead, kv_heads * group, length, keys)
    x = x.unflatten(-3, (kv_heads, group))  # type: ignore[no-untyped-call]
    item = torch.arange(math.prod(lead) * kv_heads, device=x.device)[items].unsqueeze(-1)
    row = torch.arange(group * length, device=x.device)[rows]
    at = *torch.unravel_index(item, (*lead, kv_heads)), *torch.unravel_index(row, (group, length))
    return x[at]


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    factor: torch.Tensor,
    seen: torch.Tensor | None,
    added: torch.Tensor | None,
) -> torch.Tensor:
    """q [I, R, D], k [I, S, D], v [I, S, Dv] -> [I, R, Dv]."""
    if not k.shape[-2]:
        return q.new_zeros(*q.shape[:-1], v.shape[-1])
    x = product(q, k, None, torch.float32) * factor
    if added is not None:
        x = x + added
    if seen is None:
        seen = torch.ones((), dtype=torch.bool, device=q.device).expand(x.shape)
    # A NaN is passed over here and reaches the result through the sums; -0 becomes +0.
    m = x.masked_fill(~seen | x.isnan(), -torch.inf).amax(-1, keepdim=True) + 0.0
    e = exp(x - m).masked_fill(~seen, 0.0)
    wide = v.to(torch.float32)
    # `isfinite` of every value takes torch more time than the product.
    if not v.numel() or bool(v.abs().amax().isfinite()):
        o = product(e, wide.mT, None, torch.float32)
    else:
        o = product(e, wide.masked_fill(~wide.isfinite(), 0.0).mT, None, torch.float32)
        o = _with_specials(o, e, wide, seen)
    y = o / rows(e, torch.float32).unsqueeze(-1)
    return canonical(y.masked_fill(~seen.any(-1, keepdim=True), 0.0), q.dtype)


def _with_specials(
    o: torch.Tensor, e: torch.Tensor, v: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    """Inf and NaN of the values that a row sees; those of the others take no part."""

    def any_of(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        count = product(rows.to(torch.float32), values.to(torch.float32).mT, None, torch.float32)
        return count > 0

    up = any_of(seen & (e > 0), v == torch.inf)
    down = any_of(seen & (e > 0), v == -torch.inf)
    nan = any_of(seen, v.isnan()) | any_of(seen & (e == 0), v.isinf()) | (up & down)
    o = torch.where(up & ~o.isnan(), torch.inf, torch.where(down & ~o.isnan(), -torch.inf, o))
    return o.masked_fill(nan, torch.nan)
