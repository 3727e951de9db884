"""Tries to find a result outside its certified interval.

    PYTHONPATH=src python scripts/interval_trial.py [outputs]

Random products of every arithmetic, tree and kind of data, 10 million outputs unless told
otherwise, then a tenth as many rows and attentions. Each output's result must lie inside the
contract's interval; the results of other splits of k and of permuted k inside the intervals of
those orders; and the exact result inside the exact bounds (products: `math.fsum` over exact
products, for one output in `SUMMED`; rows and attention: 80-bit arithmetic, which needs an x86
processor). The result is a Markdown table (docs/intervals.md has it): widths are medians, in units
of the largest error that was seen.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

import samebits.engines.cpu.evaluate  # noqa: F401  (the fast evaluator registers itself)
from samebits.contract import (
    IEEE_FMA,
    LinearContract,
    RowContract,
    dot,
    hopper_attention,
    hopper_mma,
    parse_tree,
)
from samebits.contract import numerics as nx
from samebits.contract.intervals import Interval
from samebits.contract.operands import widen

SUMMED = 20
KINDS = ("normal", "positive", "wide", "cancelling")
#: (arithmetic's input, tree, its K, other trees of the same arithmetic)
CASES = [
    ("bf16", "chain", 512, ("split(4)", "balanced(8)")),
    ("bf16", "split(4)", 2048, ("chain", "segment(320)")),
    ("fp16", "chain", 512, ("split(2)", "segment(128)")),
    ("tf32", "chain", 256, ("split(2)", "segment(128)")),
    ("e4m3", "segment(128)", 512, ("chain", "split(2)")),
    ("e5m2", "segment(128)", 256, ("chain", "split(2)")),
    ("fp32", "lanes(16)", 512, ("chain", "lanes(4)")),
    ("fp32", "chain", 256, ("segment(128)", "lanes(8)")),
]


@dataclass
class Tally:
    """What was found in one case."""

    input: str
    tree: str
    k: int
    outputs: int = 0
    outside: int = 0
    largest: float = 0.0
    widths: dict[str, list[float]] = field(default_factory=dict)

    def width(self, order: str) -> float | None:
        """The median width in units of the largest error, over all kinds of data."""
        found = self.widths.get(order)
        return float(np.median(found)) if found else None


def operands(
    kind: str, input: str, m: int, n: int, k: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """x [m, k] and w [n, k]: fp32 arrays of values of the input type."""
    x, w = rng.standard_normal((m, k)), rng.standard_normal((n, k))
    if kind == "positive":
        x, w = np.abs(x), np.abs(w)
    elif kind == "wide":
        x, w = (np.ldexp(a, rng.integers(-6, 7, a.shape)) for a in (x, w))
    elif kind == "cancelling":  # nearly every product comes back with the other sign
        half = k // 2
        x[:, half : 2 * half], w[:, half : 2 * half] = x[:, :half], -w[:, :half]
        x[:, half:] *= 1 + rng.integers(-1, 2, x[:, half:].shape) * 2.0**-6
    return _stored(x, input), _stored(w, input)


def _stored(x: np.ndarray, input: str) -> np.ndarray:
    x = x.astype(np.float32)
    if input in ("bf16", "fp16", "fp32"):
        return nx.round_to(x, input)
    if input == "tf32":
        return widen(x.view(np.uint32), "tf32")
    table = widen(np.arange(256, dtype=np.uint8), input)
    values = np.unique(table[np.isfinite(table)])
    return values[np.searchsorted(values, x).clip(0, len(values) - 1)]


def contract(input: str, tree: str) -> LinearContract:
    """The contract with this input and tree, with fp32 results."""
    arithmetic = IEEE_FMA if input == "fp32" else hopper_mma(input)
    return LinearContract(parse_tree(tree), arithmetic, input, "fp32")


def trial(
    case: tuple[str, str, int, tuple[str, ...]], outputs: int, rng: np.random.Generator
) -> Tally:
    """Tries one case with at least `outputs` outputs, a quarter of each kind of data."""
    input, tree, k, others = case
    tally = Tally(input, tree, k)
    largest: dict[str, float] = {}
    widths: list[tuple[str, str, float]] = []
    side = min(256, max(8, math.isqrt(outputs // len(KINDS))))
    rounds = -(-outputs // (len(KINDS) * side * side))
    for kind in KINDS * rounds:
        x, w = operands(kind, input, side, side, k, rng)
        for order, width, error in _check(contract(input, tree), others, x, w, tally, rng):
            widths.append((kind, order, width))
            largest[kind] = max(largest.get(kind, 0.0), error)
    for kind, order, width in widths:
        tally.widths.setdefault(order, []).append(width / largest[kind])
    return tally


def _check(
    contract: LinearContract, others: tuple[str, ...], x: np.ndarray, w: np.ndarray, tally: Tally,
    rng: np.random.Generator,
) -> Iterator[tuple[str, float, float]]:  # fmt: skip
    y = np.asarray(contract.evaluate(x, w))
    replay = contract.interval(x, w)
    cheap = contract.interval(x, w, replay=False)
    every = contract.interval(x, w, order="any")
    split = None if "lanes" in str(contract.tree) else contract.interval(x, w, order="split")
    middle = (replay.exact_low + replay.exact_high) / 2
    error = float(np.abs(y - middle).max())
    tally.outputs += y.size
    tally.largest = max(tally.largest, error)
    outside = ~(replay.contains(y) & cheap.contains(y) & every.contains(y))
    for other in others:
        z = dot(x, w, parse_tree(other), contract.arithmetic)
        outside |= ~every.contains(z)
        if split is not None and "lanes" not in other:
            outside |= ~split.contains(z)
    order = rng.permutation(x.shape[1])
    z = dot(x[:, order], w[:, order], contract.tree, contract.arithmetic)
    outside |= ~every.contains(z)
    for i in range(0, y.size, SUMMED):
        a, b = divmod(i, y.shape[1])
        exact = math.fsum((x[a].astype(np.float64) * w[b]).tolist())
        inside = replay.exact_low[a, b] <= exact <= replay.exact_high[a, b]
        outside[a, b] |= not inside
    tally.outside += int(outside.sum())
    for name, found in (("replay", replay), ("cheap", cheap), ("split", split), ("any", every)):
        if found is not None:
            yield name, float(np.median(found.width)), error


# ---- rows and attention --------------------------------------------------------------------------

#: (operation, elements of a row, another tree)
ROWS = [
    ("sum", 1000, "lanes(4)"), ("mean", 1000, "lanes(8)"), ("var", 300, "lanes(4)"),
    ("logsumexp", 300, "lanes(8)"), ("softmax", 500, "lanes(4)"), ("log_softmax", 500, "chain"),
    ("rms_norm", 500, "lanes(8)"), ("layer_norm", 500, "chain"), ("attention", 300, ""),
]  # fmt: skip
EPS = 2.0**-17
#: Relative precision of the 80-bit reference, sums of a thousand terms included.
PRECISE = 2.0**-50


def precise(op: str, x: np.ndarray) -> np.ndarray:
    """The operation along the last axis in 80-bit arithmetic."""
    v = x.astype(np.longdouble)
    n = v.shape[-1]
    if op in ("sum", "mean"):
        return v.sum(-1) / (n if op == "mean" else 1)
    if op in ("softmax", "log_softmax", "logsumexp"):
        m = v.max(-1, keepdims=True)
        log_sum = np.log(np.exp(v - m).sum(-1, keepdims=True))
        if op == "logsumexp":
            return (log_sum + m)[..., 0]
        return np.exp(v - m - log_sum) if op == "softmax" else v - m - log_sum
    d = v if op == "rms_norm" else v - v.mean(-1, keepdims=True)
    squares = (d * d).sum(-1, keepdims=True)
    if op == "var":
        return squares[..., 0] / (n - 1)
    return d / np.sqrt(squares / n + np.longdouble(EPS))


def row_trial(case: tuple[str, int, str], outputs: int, rng: np.random.Generator) -> Tally:
    """Tries one operation along rows with at least `outputs` outputs; "K" is a row's length."""
    op, n, other = case
    tally = Tally(op, "", n)
    width, errors = [], []
    while tally.outputs < outputs:
        if op == "attention":
            y, own, every, z, exact = _attention(n, rng)
        else:
            rows = max(8, min(outputs, 1 << 18) // (n if op.endswith(("softmax", "norm")) else 1))
            x = rng.standard_normal((min(rows, 2000), n)) * 3 + rng.standard_normal((1, 1)) * 5
            x = x.astype(np.float32)
            contract = RowContract(op, "fp32", "fp32")
            y = np.asarray(contract.evaluate(x, eps=EPS))
            own, every = (contract.interval(x, eps=EPS, order=o) for o in ("contract", "any"))
            p = rng.permutation(n)
            second = RowContract(op, "fp32", "fp32", parse_tree(other))
            z = np.asarray(second.evaluate(x[:, p], eps=EPS))
            z = z[:, np.argsort(p)] if z.ndim == 2 else z
            exact = precise(op, x)
        slack = PRECISE * np.abs(exact)
        inside = (own.exact_low <= exact + slack) & (exact - slack <= own.exact_high)
        tally.outside += int((~(inside & own.contains(y) & every.contains(y))).sum())
        tally.outside += int((~every.contains(z)).sum())
        tally.outputs += y.size
        errors.append(float(np.abs(y - exact).max()))
        width.append((float(np.median(own.width)), float(np.median(every.width))))
    tally.largest = max(errors)
    for name, found in zip(("replay", "any"), np.array(width).T, strict=True):
        tally.widths[name] = (found / tally.largest).tolist()
    return tally


def _attention(keys: int, rng: np.random.Generator) -> tuple[Any, Interval, Interval, Any, Any]:
    """64 queries over some keys, bf16, sm_90: results, intervals, other leaves, exact."""
    q, k, v = (_stored(rng.standard_normal((n, 32)), "bf16") for n in (64, keys, keys))
    contract = hopper_attention("bf16")
    own, every = (contract.interval(q, k, v, order=order) for order in ("contract", "any"))
    p = rng.permutation(keys)
    z = replace(contract, leaf=64).evaluate(q, k[p], v[p])
    s = q.astype(np.longdouble) @ k.astype(np.longdouble).T / np.sqrt(np.longdouble(32))
    exact = precise("softmax", s) @ v.astype(np.longdouble)
    return np.asarray(contract.evaluate(q, k, v)), own, every, np.asarray(z), exact


def main() -> None:
    outputs = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000
    print("| operands | tree | K | outputs | outside | replayed | from operands | split | any |")
    print("|---|---|---|---|---|---|---|---|---|")
    started, total, outside = time.perf_counter(), 0, 0
    tallies = (
        *(partial(trial, case, -(-outputs // len(CASES))) for case in CASES),
        *(partial(row_trial, case, -(-outputs // 10 // len(ROWS))) for case in ROWS),
    )
    for seed, tally in enumerate(tallies):
        t = tally(np.random.default_rng(seed))
        shown = [t.width(order) for order in ("replay", "cheap", "split", "any")]
        cells = " | ".join("" if v is None else f"{v:.2g}" for v in shown)
        print(f"| {t.input} | {t.tree} | {t.k} | {t.outputs:,} | {t.outside} | {cells} |")
        total, outside = total + t.outputs, outside + t.outside
    print(f"\n{total:,} outputs, {outside} outside, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
