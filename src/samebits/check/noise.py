"""Is a difference noise? An operation's two results against what other orders of its sums give.

The operands of the first operation that differs are known, so everything else can be computed:
between which numbers every order must land (`contract.interval`, certified), how far apart orders
really are (the contract evaluated along other trees and with permuted terms), and what the
operation gives with the switch on. Only a sample of the elements is computed, those that differ
most among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from samebits import bits
from samebits.check.cause.capture import Operation
from samebits.check.cause.twins import NoTwinError, twin
from samebits.check.result import Noise
from samebits.contract import AttentionContract, LinearContract, RowContract, parse_tree
from samebits.contract.arithmetic import BlockFma
from samebits.contract.intervals import Interval
from samebits.errors import SamebitsError, UncoveredError
from samebits.plan import contract_of

_ROWS, _COLUMNS, _HEADS = 16, 256, 2
#: A difference this many times as large as those between other orders is no accident of order.
_SUSPECT = 8.0
#: Octaves of the histograms: differences from 2^FIRST of the results' scale on.
FIRST, OCTAVES = -36, 40
_SEED = 0
Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[torch.Tensor, torch.Tensor]

#: Factors among the operands, whether the second lies transposed, and the place of the bias.
_PRODUCTS = {
    "mm": (0, 1, True, None), "bmm": (0, 1, True, None), "addmm": (1, 2, True, 0),
    "linear": (0, 1, False, 2), "mv": (1, 0, False, None),
}  # fmt: skip
_ROW_OPS = {
    "_softmax": "softmax", "softmax": "softmax", "_log_softmax": "log_softmax",
    "log_softmax": "log_softmax", "sum": "sum", "mean": "mean", "logsumexp": "logsumexp",
    "native_layer_norm": "layer_norm", "layer_norm": "layer_norm", "rms_norm": "rms_norm",
    "_fused_rms_norm": "rms_norm",
}  # fmt: skip


@dataclass(frozen=True)
class Sums:
    """An operation's sums, cut to a sample.

    Attributes:
        whole: the request's part of the two runs' results.
        results: the sample of them.
        interval: what every order must keep.
        orders: results of other orders, one after the other.
    """

    whole: Pair
    results: Pair
    interval: Callable[[], Interval]
    orders: Callable[[], Iterator[Array]]


def noise(first: Operation, second: Operation) -> Noise | None:
    """Judges an operation that differs; None where no contract says what its orders may give.

    Args:
        first, second: the operation taken out of both runs, with the same operands.
    """
    name = str(first.func._schema.name).partition("::")[2].rstrip("_")
    kinds = ((_PRODUCTS, _product), (_ROW_OPS, _rows))
    make = next((f for names, f in kinds if name in names), None)
    make = _attention if "scaled_dot_product" in name else make
    make = _no_sum if torch.Tag.pointwise in first.func.tags else make
    if make is None or first.func is not second.func or not (first.output and second.output):
        return None
    try:
        sums = make(name, first, second)
        return None if sums is None else _judged(name, sums, _switched(first, second))
    except SamebitsError:  # no contract for these operands or this device
        return None


def _judged(name: str, sums: Sums, switched: Pair | None) -> Noise:
    a, b = (t.double().numpy() for t in sums.results)
    interval = sums.interval()
    outside = int((~(interval.contains(a) & interval.contains(b))).sum())
    orders = [order.astype(np.float64).reshape(a.shape) for order in sums.orders()]
    all_a, all_b = (t.double().numpy() for t in sums.whole)
    finite = all_a[np.isfinite(all_a)]
    scale = float(np.sqrt(np.mean(np.square(finite)))) if len(finite) else 0.0
    scale = scale or 1.0
    with np.errstate(invalid="ignore"):  # where orders overflow
        predicted = np.concatenate([(x - y).reshape(-1) for x, y in pairwise(orders)])
        stock = all_a - all_b
    ours = None
    if switched is not None:
        ours = histogram((switched[0].double() - switched[1].double()).numpy(), scale)
    with np.errstate(invalid="ignore"):
        reach = np.median(interval.last - interval.first) / scale
    observed, usual = (np.abs(d[np.isfinite(d)]) for d in (stock, predicted))
    largest = float(observed.max(initial=0))
    # Rounding to the output can hide what orders do; one of its units is no surprise.
    unit = torch.finfo(sums.whole[0].dtype).eps * float(np.abs(finite).max(initial=0))
    between = max(float(usual.max(initial=0)), unit)
    times = largest / between if between else math.inf if largest else 0.0
    return Noise(
        op=name,
        verdict="defect" if outside else "suspect" if times > _SUSPECT else "reordering",
        elements=a.size,
        outside=outside,
        times=times,
        reach=float(reach) if np.isfinite(reach) else math.inf,
        predicted=histogram(predicted, scale),
        stock=histogram(stock, scale),
        switched=ours,
    )


def histogram(differences: Array, scale: float) -> tuple[int, ...]:
    """Counts of |differences| / scale: zeros, then by octaves from 2^FIRST on, the last open."""
    size = np.abs(np.asarray(differences, np.float64).reshape(-1)) / scale
    size = np.where(np.isnan(size), np.inf, size)
    octave = np.where(size > 0, np.floor(np.log2(np.maximum(size, 2.0**FIRST))) - FIRST, -1)
    counts = np.bincount(np.minimum(octave, OCTAVES - 1).astype(int) + 1, minlength=OCTAVES + 1)
    return tuple(counts.tolist())


def _switched(first: Operation, second: Operation) -> Pair | None:
    """The request's part of both calls, computed under the contract; None where none covers it."""
    try:
        fn = twin(first.func, {}, [first, second])
        a, b = (op.parts(op.run(func=fn)[:1])[0] for op in (first, second))
    except (NoTwinError, UncoveredError):
        return None
    return (a.cpu(), b.cpu()) if a.shape == b.shape else None


def _device(op: Operation) -> str:
    device = op.output[0].device
    if device.type == "cpu":
        return "cpu"
    from samebits.engines.triton import device_class

    return device_class(device.index or 0)


def _results(first: Operation, second: Operation) -> Pair | None:
    parts = [op.parts(op.output[:1]) for op in (first, second)]
    if not all(parts) or parts[0][0].shape != parts[1][0].shape:
        return None
    a, b = (p[0].detach().cpu() for p in parts)
    return (a, b) if a.is_floating_point() else None


def _same(first: Operation, second: Operation, i: int) -> torch.Tensor | None:
    """Operand `i`'s part for the request, if both runs have the same."""
    pair = []
    for op in (first, second):
        found = op.parts(op.operands[i : i + 1]) if len(op.operands) > i else []
        if not found:
            return None
        pair.append(found[0].detach().cpu())
    a, b = pair
    return a if bits.equal(a, b) else None


def _most(gap: torch.Tensor, axis: int, count: int) -> torch.Tensor:
    """Where the runs differ most along an axis, and as many places evenly spaced, ascending."""
    each = gap.movedim(axis, 0).reshape(gap.shape[axis], -1).amax(1)
    if len(each) <= count:
        return torch.arange(len(each))
    most = each.topk(count // 2).indices
    even = torch.linspace(0, len(each) - 1, count - count // 2).long()
    return torch.tensor(sorted({*most.tolist(), *even.tolist()}))


def _gap(pair: Pair) -> torch.Tensor:
    return (pair[0].double() - pair[1].double()).abs().nan_to_num(float("inf"))


def _no_sum(name: str, first: Operation, second: Operation) -> Sums | None:
    """An operation on single elements: no order explains anything."""
    pair = _results(first, second)
    if pair is None or any(
        _same(first, second, i) is None
        for i, t in enumerate(first.operands)
        if t.shape == first.output[0].shape
    ):
        return None
    a = pair[0].double().numpy()
    return Sums(pair, pair, lambda: Interval(a, a, a, a), lambda: iter((a, a)))


# ---- products ----------------------------------------------------------------------------------


def _product(name: str, first: Operation, second: Operation) -> Sums | None:
    left, right, transposed, third = _PRODUCTS[name]
    pair, x = _results(first, second), _same(first, second, left)
    if pair is None or x is None or len(first.operands) <= right:
        return None
    batched = name == "bmm"
    w = _same(first, second, right) if batched else first.operands[right].detach().cpu()
    if w is None or any(first.kwargs.get(k, 1) != 1 for k in ("alpha", "beta")):
        return None
    w = w.mT if transposed else w
    if batched:
        keep = _most(_gap(pair), 0, _HEADS)
        x, w, pair = x[keep], w[keep], (pair[0][keep], pair[1][keep])
    else:
        x = x.reshape(-1, x.shape[-1])
        pair = (pair[0].reshape(len(x), -1), pair[1].reshape(len(x), -1))
    if x.dim() != w.dim() or pair[0].shape != (*x.shape[:-1], w.shape[-2]):
        return None
    gap = _gap(pair)
    rows, columns = _most(gap, -2, _ROWS), _most(gap, -1, _COLUMNS)
    bias = first.operands[third].detach().cpu() if third is not None and len(
        first.operands) > third else None  # fmt: skip
    if bias is not None:
        bias = bias.expand(gap.shape)[rows][:, columns]
    x, w = x[..., rows, :], w[..., columns, :]
    results = (pair[0][..., rows, :][..., columns], pair[1][..., rows, :][..., columns])
    out = results[0].dtype
    contract = contract_of(
        "linear", n=gap.shape[-1], k=x.shape[-1], dtype=x.dtype, out_dtype=out,
        device=_device(first),
    )  # fmt: skip
    assert isinstance(contract, LinearContract)

    def orders() -> Iterator[Array]:
        block = isinstance(contract.arithmetic, BlockFma)
        names = (
            ("chain", "split(2)", "split(4)", "segment(512)", "balanced(8)")
            if block
            else ("chain", "lanes(4)", "lanes(16)", "split(4)", "segment(64) of lanes(8)")
        )
        for tree in names:
            other = replace(contract, tree=parse_tree(tree))
            yield _numbers(other.evaluate(x, w, bias, out))

    return Sums(pair, results, lambda: contract.interval(x, w, bias, out, order="any"), orders)


def _numbers(result: Any) -> Array:
    found: Array = result.double().numpy()
    return found


# ---- rows --------------------------------------------------------------------------------------


def _rows(name: str, first: Operation, second: Operation) -> Sums | None:
    pair, x = _results(first, second), _same(first, second, 0)
    op = _ROW_OPS[name]
    if pair is None or x is None or not _last_axis(op, first, x):
        return None
    whole = pair[0].shape == x.shape
    x = x.reshape(-1, x.shape[-1])
    shape = x.shape if whole else x.shape[:1]
    if pair[0].numel() != math.prod(shape):
        return None
    pair = (pair[0].reshape(shape), pair[1].reshape(shape))
    keep = _most(_gap(pair), 0, _ROWS)
    x, results = x[keep], (pair[0][keep], pair[1][keep])
    numbers = [a for a in first.args if isinstance(a, float)]
    how: dict[str, Any] = {}
    if op.endswith("_norm"):
        extra = [t.detach().cpu() for t in first.operands[1:3]]
        how = {"eps": numbers[-1] if numbers else torch.finfo(x.dtype).eps}
        how |= dict(zip(("weight", "bias"), extra, strict=False))
    contract = contract_of(op, dtype=x.dtype, out_dtype=results[0].dtype, device=_device(first))
    assert isinstance(contract, RowContract)
    out = results[0].dtype

    def orders() -> Iterator[Array]:
        generator = torch.Generator().manual_seed(_SEED)
        for tree in ("chain", "lanes(4)", "lanes(8)", "lanes(16)", "segment(64) of lanes(8)"):
            p = torch.randperm(x.shape[-1], generator=generator)
            terms: dict[str, Any] = {
                k: v[p] if isinstance(v, torch.Tensor) else v for k, v in how.items()
            }
            other = replace(contract, tree=parse_tree(tree), formula="")
            y = _numbers(other.evaluate(x[:, p], out_dtype=out, **terms))
            yield y[:, p.argsort().numpy()] if whole else y

    return Sums(
        pair, results, lambda: contract.interval(x, out_dtype=out, order="any", **how), orders
    )


def _last_axis(op: str, first: Operation, x: torch.Tensor) -> bool:
    """Whether the operation works along the last axis, of floating-point numbers."""
    if not x.is_floating_point() or x.dim() < 1:
        return False
    if op.endswith("_norm"):
        shape = first.args[1] if len(first.args) > 1 else ()
        return tuple(shape) == tuple(x.shape[-1:])
    axes = first.args[1] if len(first.args) > 1 else None
    axes = [axes] if isinstance(axes, int) else axes
    rank = first.operands[0].dim()
    return isinstance(axes, Sequence) and [a % rank for a in axes] == [rank - 1]


# ---- attention ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    """One query of some heads and the keys that it sees: q [H, 1, D], k [H, n, D], v [H, n, Dv].

    y [H, 1, Dv] is the run's result, bias [H, 1, n] an additive mask or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    y: torch.Tensor
    bias: torch.Tensor | None

    def like(self, other: Query) -> bool:
        """Whether both were asked the same."""
        pairs = ((self.q, other.q), (self.k, other.k), (self.v, other.v))
        if not all(bits.equal(a, b) for a, b in pairs):
            return False
        if self.bias is None or other.bias is None:
            return self.bias is other.bias
        return bits.equal(self.bias, other.bias)


def _argument(op: Operation, name: str) -> Any:
    """An argument by its name in the operation's schema; None if it was not given."""
    for i, argument in enumerate(op.func._schema.arguments):
        if argument.name == name and not argument.kwarg_only and i < len(op.args):
            return op.args[i]
    return op.kwargs.get(name)


def _query(op: Operation, place: int, heads: Sequence[int] | None) -> Query | None:
    """The request's query at a place of the token axis, in the given heads (all if None)."""
    row = op.row if op.window.batch and op.operands[0].shape[0] == op.window.batch else 0
    q, k, v, y = (t[row].detach().cpu() for t in (*op.operands[:3], op.output[0]))
    if q.dim() != 3 or k.shape[:-1] != v.shape[:-1] or y.shape[:-1] != q.shape[:-1]:
        return None
    each = torch.arange(len(q)) if heads is None else torch.tensor(heads)
    group, keys = len(q) // len(k), k.shape[-2]
    seen, bias = torch.ones(keys, dtype=torch.bool), None
    if _argument(op, "is_causal"):
        seen = torch.arange(keys) <= place
    masks = [t for t in op.operands[3:4] if t.dim() >= 2]
    if masks:
        mask = masks[0].detach().cpu().expand(*op.operands[0].shape[:-1], keys)[row][each, place]
        hidden = mask if mask.dtype is torch.bool else mask != -math.inf
        if not bool((hidden == hidden[:1]).all()):
            return None  # heads that see different keys
        seen = seen & hidden[0]
        bias = None if mask.dtype is torch.bool else mask[:, None, seen].float()
    if bias is not None and not bool(bias.any()):
        bias = None
    some = each // group
    return Query(q[each, place][:, None], k[some][:, seen], v[some][:, seen],
                 y[each, place][:, None], bias)  # fmt: skip


def _attention(name: str, first: Operation, second: Operation) -> Sums | None:
    whole = _results(first, second)
    if whole is not None and whole[0].dim() == 4 and len(whole[0]) == 1:
        whole = (whole[0][0], whole[1][0])
    if whole is None or whole[0].dim() != 3:
        return None
    gap = _gap(whole)
    at = int(gap.amax((0, 2)).argmax())
    heads = _most(gap, 0, _HEADS).tolist()
    starts = [op.window.spans[op.row][0] if op.window.spans else 0 for op in (first, second)]
    focus = [op.token if op.alone else at for op in (first, second)]
    x, other = (
        _query(op, start + token, heads)
        for op, start, token in zip((first, second), starts, focus, strict=True)
    )
    if x is None or other is None or not x.like(other):
        return None
    out, scale = x.y.dtype, _argument(first, "scale")
    contract = contract_of(
        "attention", dtype=x.q.dtype, head_dim=x.q.shape[-1], value_dim=x.v.shape[-1],
        device=_device(first),
    )  # fmt: skip
    assert isinstance(contract, AttentionContract)
    bias = None if x.bias is None else x.bias.numpy()
    how: dict[str, Any] = {"scale": scale, "out_dtype": out}
    keys = x.k.shape[-2]

    def orders() -> Iterator[Array]:
        generator = torch.Generator().manual_seed(_SEED)
        for leaf in (64, 128, contract.leaf, keys + -keys % 64):
            p = torch.randperm(keys, generator=generator)
            some = None if bias is None else bias[..., p]
            other = replace(contract, leaf=leaf)
            yield _numbers(other.evaluate(x.q, x.k[:, p], x.v[:, p], bias=some, **how))
        yield from _other_maxima(x, scale)

    return Sums(
        whole, (x.y, other.y),
        lambda: contract.interval(x.q, x.k, x.v, bias=bias, order="any", **how), orders,
    )  # fmt: skip


def _other_maxima(x: Query, scale: float | None) -> Iterator[Array]:
    """Weights of 16 bits below maxima that are no powers of two: each rounds other weights up."""
    if x.v.dtype is torch.float32:
        return
    q, k, v = (t.double() for t in (x.q, x.k, x.v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if x.bias is None else s + x.bias
    for above in (0.0, 0.2, 0.45, 0.7):
        p = (s - s.amax(-1, keepdim=True) - above).exp().to(x.v.dtype).double()
        yield _numbers((p @ v / p.sum(-1, keepdim=True)).to(x.y.dtype))
