"""How far results may be from the exact one, whatever the operation.

An operation is computed again in binary64. Both runs are compared with that, and with the largest
error that rounding can cause in any order of the additions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from samebits.check.cause.capture import Operation, base_name
from samebits.check.cause.products import OUTPUT, UNIT, sample
from samebits.check.cause.settings import on_stock
from samebits.mode.coverage import moves_data

_PRODUCTS = {"bmm": (0, 1), "baddbmm": (1, 2), "matmul": (0, 1), "convolution": (0, 1)}
_SUMS = {"sum", "mean", "cumsum", "nansum"}
_SCATTERED = {"index_add", "scatter_add", "index_put", "_index_put_impl", "put"}
_RELATIVE = {
    "_softmax", "_log_softmax", "native_layer_norm", "_fused_rms_norm", "rms_norm", "logsumexp",
    "native_group_norm", "var", "std", "native_batch_norm",
}  # fmt: skip
_SAME = 2.0**-36
"""Relative difference of two results in binary64 that mean the same."""


@dataclass(frozen=True)
class Judgement:
    """Two calls against the exact result.

    Attributes:
        of_bound: the largest error of each, as a share of what rounding can cause in any order.
        alike: both calls have the same exact result: they were asked the same.
        narrower: with which fewer bits each was computed, or None.
    """

    of_bound: tuple[float, float]
    alike: bool
    narrower: tuple[str | None, str | None] = (None, None)


@on_stock
def judge(first: Operation, second: Operation) -> Judgement | None:
    """Compares two calls of an operation with the exact result; None where it has no binary64."""
    if not all(op.output and op.output[0].dtype in OUTPUT for op in (first, second)):
        return None
    pair = sample(first, second)
    if pair is not None:
        x, y = pair
        return Judgement(
            (x.of_bound(), y.of_bound()), _alike(x.exact(), y.exact()), (x.narrower(), y.narrower())
        )
    try:
        (p, a), (q, b) = _shares(first), _shares(second)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return None  # no kernel for binary64, or no bound
    return Judgement((a, b), _alike(p, q))


def _alike(p: torch.Tensor, q: torch.Tensor) -> bool:
    if p.shape != q.shape:
        return False
    return float((p - q).abs().max()) <= _SAME * float(p.abs().max())


def _shares(op: Operation) -> tuple[torch.Tensor, float]:
    """The request's part of the exact result, and the largest error as a share of the bound."""
    exact, bound = _bounded(op)
    (got,), (want,), (most,) = (op.parts([t])[:1] for t in (op.output[0], exact, bound))
    error = (got.double() - want).abs() / most
    return want, float(error.nan_to_num(float("inf"), posinf=float("inf")).max())


def _bounded(op: Operation) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact result, and for each element the largest error that rounding can cause.

    Products and sums: gamma_n sum |terms|. Scattered sums: see `_scattered`. Attention: see
    `_attention`. Rows of softmaxes and norms: a few roundings for each term of a row. Single
    elements: a few roundings.

    Raises:
        ValueError: of no such operation; nothing is known of its errors.
    """
    name, output = base_name(op.func), op.output[0]
    if op.func.namespace != "aten":
        raise ValueError(f"nothing is known of {op.func}")
    if name.endswith("multi_head_attention"):
        raise ValueError(f"{name} has projections inside: no one sum bounds its errors")
    floats = [t for t in op.operands if t.dtype in OUTPUT]
    exact = _exact_attention(op) if "attention" in name else _in_binary64(op)
    last = OUTPUT[output.dtype] * exact.abs() + torch.finfo(output.dtype).tiny
    if name in _SCATTERED:
        return exact, _scattered(op) + last
    if name in _PRODUCTS or name in _SUMS:
        size = _in_binary64(op, torch.abs).abs()
        if name in _SUMS:
            terms = floats[0].numel() // max(exact.numel(), 1)
        else:
            x, w = (op.operands[i] for i in _PRODUCTS[name])
            terms = w[0].numel() if name == "convolution" else x.shape[-1]
        return exact, (terms + 2) * UNIT * size + last
    if "attention" in name:
        return exact, _attention(op, exact) + last
    if name not in _RELATIVE and not _of_elements(op):
        raise ValueError(f"no bound of {name} is known")
    terms = floats[0].shape[-1] if name in _RELATIVE and floats[0].dim() else 1
    scale = exact.abs().amax() if name in _RELATIVE else exact.abs()
    return exact, (8 + terms) * UNIT * scale + 4 * last


def _of_elements(op: Operation) -> bool:
    """Whether an operation computes each element from a few, or only moves them."""
    return torch.Tag.pointwise in op.func.tags or moves_data(op.key[1].partition(".")[2])


def _in_binary64(
    op: Operation, each: Callable[[torch.Tensor], torch.Tensor] = lambda t: t
) -> torch.Tensor:
    """The operation's first result with `each` of its operands in binary64."""

    def wide(x: Any) -> Any:
        narrow = isinstance(x, torch.Tensor) and x.dtype in OUTPUT
        return each(x.detach().double()) if narrow else x

    args, kwargs = tree_map(wide, (op.args, op.kwargs))
    if kwargs.get("dtype") in OUTPUT:
        kwargs["dtype"] = torch.float64
    with torch.no_grad():
        results: list[torch.Tensor] = tree_leaves(op.func(*args, **kwargs))
    return results[0]


def _scattered(op: Operation) -> torch.Tensor:
    """Gamma_n sum |terms| with each element's own n; every addition may round to the result's type.

    Raises:
        ValueError: the terms are scaled first.
    """
    if op.kwargs.get("alpha", 1) != 1:
        raise ValueError(f"{op.func} scales its terms")
    terms = _in_binary64(op, torch.ones_like)  # ones add up to their number
    unit = max(UNIT, OUTPUT[op.output[0].dtype])
    bound: torch.Tensor = (terms + 2) * unit * _in_binary64(op, torch.abs)
    return bound


def _exact_attention(op: Operation) -> torch.Tensor:
    """Attention in binary64; fused kernels would take it for another type."""
    names = [argument.name for argument in op.func._schema.arguments]
    given = dict(zip(names, op.args, strict=False)) | op.kwargs
    q, k, v = (t.double() for t in op.operands[:3])
    mask = given.get("attn_mask", given.get("attn_bias"))
    if isinstance(mask, torch.Tensor) and mask.dtype in OUTPUT:
        mask = mask.double()
    return functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=bool(given.get("is_causal")), scale=given.get("scale"),
        enable_gqa=q.dim() == 4 and q.shape[1] != k.shape[1],
    )  # fmt: skip


def _attention(op: Operation, exact: torch.Tensor) -> torch.Tensor:
    """Scores off by gamma_D |q||k|, probabilities rounded to the values' type, sums in fp32."""
    q, k, v = (t.double() for t in op.operands[:3])
    dtype = op.operands[2].dtype
    narrow = UNIT if dtype is torch.float32 else OUTPUT[dtype]
    scale = op.kwargs.get("scale") or q.shape[-1] ** -0.5
    heads = q.shape[1] // k.shape[1] if q.dim() == 4 else 1
    longest = k.norm(dim=-1, keepdim=True).amax(-2, keepdim=True)
    largest = v.abs().amax((-2, -1), keepdim=True)
    if heads > 1:
        longest, largest = (t.repeat_interleave(heads, 1) for t in (longest, largest))
    score = (q.shape[-1] + 2) * UNIT * scale * q.norm(dim=-1, keepdim=True) * longest
    relative = 2 * score + (k.shape[-2] + 8) * UNIT + 2 * narrow
    bound: torch.Tensor = relative * largest
    return bound.expand_as(exact)
