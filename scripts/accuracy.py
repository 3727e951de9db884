"""Largest errors of the elementwise functions, in ulp of fp32, against mpmath.

    PYTHONPATH=src python scripts/accuracy.py [samples]

The samples are random bit patterns of each function's interesting range, evenly spread values, and
neighbours of special points. The result is a Markdown table (docs/measured.md has it).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import mpmath as mp
import numpy as np
import torch

from samebits.engines.cpu import pointwise

mp.mp.prec = 120


def ulp_error(got: float, want: mp.mpf) -> float:
    """|got - want| in units of the last place of `want` in fp32 (subnormals have the smallest)."""
    if want == 0:
        return 0.0 if got == 0 else float("inf")
    exponent = max(int(mp.floor(mp.log(abs(want), 2))), -126)
    if abs(want) >= mp.mpf(2) ** 128:
        return 0.0 if abs(got) == float("inf") else float("inf")
    if abs(got) == float("inf"):  # rounds past the largest finite number
        got = float(np.sign(got)) * 2.0**128
    return float(abs(mp.mpf(got) - want) / mp.mpf(2) ** (exponent - 23))


def patterns(low: float, high: float, n: int, seed: int) -> np.ndarray:
    """`n` values of [low, high]: half even, half with random exponents, and the ends."""
    rng = np.random.default_rng(seed)
    even = rng.uniform(low, high, n // 2)
    logs = 2.0 ** rng.uniform(-40, np.log2(max(abs(low), abs(high), 1e-30)), n)
    both = np.concatenate([even, logs, -logs, [low, high]]).astype(np.float32)
    inside = both[(both >= np.float32(low)) & (both <= np.float32(high))]
    return rng.permutation(inside)[:n]


def phi(x: mp.mpf) -> mp.mpf:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def gelu_tanh(x: mp.mpf) -> mp.mpf:
    u = mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)
    return x / (1 + mp.exp(-2 * u))


def softplus(x: mp.mpf) -> mp.mpf:
    return mp.log1p(mp.exp(x))


Exact = Callable[[mp.mpf], mp.mpf]
#: name -> (exact function, low, high)
UNARY: dict[str, tuple[Exact, float, float]] = {
    "exp": (mp.exp, -104, 89), "exp2": (lambda x: mp.mpf(2) ** x, -150, 128),
    "expm1": (mp.expm1, -20, 89), "log": (mp.log, 1e-45, 3e38),
    "log2": (lambda x: mp.log(x) / mp.log(2), 1e-45, 3e38), "log10": (mp.log10, 1e-45, 3e38),
    "log1p": (mp.log1p, -0.99999, 3e38), "sinh": (mp.sinh, -89, 89), "cosh": (mp.cosh, -89, 89),
    "tanh": (mp.tanh, -10, 10), "asinh": (mp.asinh, -3e38, 3e38), "acosh": (mp.acosh, 1, 3e38),
    "atanh": (mp.atanh, -0.9999, 0.9999), "sin": (mp.sin, -3e38, 3e38),
    "cos": (mp.cos, -3e38, 3e38),
    "tan": (mp.tan, -3e38, 3e38), "asin": (mp.asin, -1, 1), "acos": (mp.acos, -1, 1),
    "atan": (mp.atan, -3e38, 3e38),
    "erf": (mp.erf, -5, 5), "erfc": (mp.erfc, -5, 10.1),
    "sigmoid": (lambda x: 1 / (1 + mp.exp(-x)), -104, 30),
    "silu": (lambda x: x / (1 + mp.exp(-x)), -104, 30), "gelu": (lambda x: x * phi(x), -14, 30),
    "gelu_tanh": (gelu_tanh, -11, 30), "mish": (lambda x: x * mp.tanh(softplus(x)), -104, 30),
    "rsqrt": (lambda x: 1 / mp.sqrt(x), 1e-45, 3e38),
    "softplus": (softplus, -104, 30), "logit": (lambda x: mp.log(x / (1 - x)), 1e-30, 1),
}  # fmt: skip
PARAMS = {"softplus": (1.0, 20.0), "logit": (-1.0,)}
#: narrow ranges that are measured as well
EXTRA = {"sin": 100.0, "cos": 100.0, "tan": 100.0, "log": 3.0, "log2": 3.0, "log10": 3.0,
         "log1p": 1.0, "asinh": 3.0, "acosh": 3.0, "atan": 3.0}  # fmt: skip
BINARY: dict[str, tuple[Callable[[mp.mpf, mp.mpf], mp.mpf], tuple[float, float], float]] = {
    "pow": (lambda x, y: x**y, (0, 1000), 30), "atan2": (mp.atan2, (-50, 50), 50),
    "hypot": (mp.hypot, (-1e10, 1e10), 1e10), "logaddexp": (
        lambda a, b: mp.log(mp.exp(a) + mp.exp(b)), (-50, 50), 50),
    "logaddexp2": (lambda a, b: mp.log(mp.mpf(2) ** a + mp.mpf(2) ** b, 2), (-50, 50), 50),
}  # fmt: skip


def main(samples: int) -> None:
    print("| function | largest error, ulp | at |\n|---|---|---|")
    for name, (exact, low, high) in UNARY.items():
        ranges = [(low, high)]
        if name in EXTRA:
            ranges.append((max(low, -EXTRA[name]), EXTRA[name]))
        worst, at = -1.0, 0.0
        for k, (lo, hi) in enumerate(ranges):
            x = patterns(lo, hi, samples, 7 + k)
            y = pointwise.unary(name, torch.from_numpy(x), *PARAMS.get(name, ())).numpy()
            for u, v in zip(x.tolist(), y.tolist(), strict=True):
                if name in ("logit",) and u >= 1:
                    continue
                if (error := ulp_error(v, exact(mp.mpf(u)))) > worst:
                    worst, at = error, u
        print(f"| {name} | {worst:.3f} | {at!r} |", flush=True)
    for name, (exact2, (low, high), span) in BINARY.items():
        a, b = patterns(low, high, samples, 3), patterns(-span, span, samples, 4)
        n = min(len(a), len(b))
        a, b = a[:n], b[:n]
        y = pointwise.binary(name, torch.from_numpy(a), torch.from_numpy(b)).numpy()
        worst, where = -1.0, (0.0, 0.0)
        for u, w, v in zip(a.tolist(), b.tolist(), y.tolist(), strict=True):
            if u == 0 or w == 0:
                continue
            if (error := ulp_error(v, exact2(mp.mpf(u), mp.mpf(w)))) > worst:
                worst, where = error, (u, w)
        print(f"| {name} | {worst:.3f} | {where} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20000)
