"""Every elementwise kernel with its NumPy twin, and the arguments it is tested with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from samebits.contract import activations, functions, functions64, numerics, trig
from samebits.engines.cpu import _cpu

Twin = Callable[..., Any]
_MODULES = (activations, trig, functions64, functions)
PARAMS: dict[str, list[tuple[float, ...]]] = {
    "softplus": [(1.0, 20.0), (0.7, 3.0), (-2.0, 20.0)],
    "elu": [(1.0, 1.0, 1.0), (0.77, 1.1, 0.9)],
    "softshrink": [(0.5,)], "logit": [(-1.0,), (0.1,), (0.0,)],
    "pow_exponent": [(2.7,), (-1.5,), (3.0,)], "pow_base": [(2.5,), (-3.0,)],
    "add_scaled": [(0.7,)], "softplus_backward": [(1.0, 20.0), (0.7, 3.0)],
    "elu_backward": [(0.77, 1.1, 0.9)], "elu_backward_result": [(0.77, 1.1, 0.9)],
    "logit_backward": [(-1.0,), (0.1,)], "hardtanh_backward": [(-0.5, 0.7)],
    "shrink_backward": [(0.5,)],
}  # fmt: skip
UNARY = [(n, p) for n in _cpu.pointwise_unary_ops() for p in PARAMS.get(n, [()])]
BINARY = [(n, p) for n in _cpu.pointwise_binary_ops() for p in PARAMS.get(n, [()])]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def twin(name: str) -> Twin:
    """The exact definition of a kernel."""
    if name == "mul":
        return numerics.mul32
    return next(getattr(m, name) for m in _MODULES if hasattr(m, name))


@cache
def all_words(dtype: torch.dtype) -> torch.Tensor:
    """All 65536 values of a 16-bit dtype."""
    return torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)


SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, 1e-45, -1e-45, 1.1754944e-38,
    1e-40, 3.4028235e38, -3.4028235e38, torch.inf, -torch.inf, torch.nan, 131072.0, 131071.99,
    88.72284, -103.97, -104.0, 0.99999994, 1.0000001, 16777216.0, 16777217.0, 1e10, -1e30,
    0.70710677,
]  # fmt: skip


@cache
def samples(n: int, seed: int) -> torch.Tensor:
    """fp32 values: random words, values of usual magnitude, and specials."""
    g = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**31), 2**31, (n,), generator=g).to(torch.int32).view(torch.float32)
    usual = torch.randn(n, generator=g) * 2.0 ** torch.randint(-8, 6, (n,), generator=g)
    return torch.cat([words, usual, torch.rand(n, generator=g), torch.tensor(SPECIAL)])


@cache
def pairs(dtype: torch.dtype, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of values of `dtype`: random ones, and every pair of specials."""
    special = torch.tensor(SPECIAL)
    a = torch.cat([samples(n, 1), special.repeat_interleave(len(SPECIAL))])
    b = samples(n, 2)
    b = torch.cat([b[torch.randperm(len(b), generator=torch.Generator().manual_seed(3))],
                   special.repeat(len(SPECIAL))])  # fmt: skip
    return a.to(dtype), b.to(dtype)


def values(x: torch.Tensor) -> np.ndarray:
    """A tensor's elements as fp32, exactly."""
    return x.float().numpy()


def expected(name: str, params: tuple[float, ...], *args: torch.Tensor) -> torch.Tensor:
    """The contract's bits, as integers."""
    with np.errstate(all="ignore"):
        y = np.asarray(twin(name)(*(values(a) for a in args), *params), np.float32)
    if args[0].dtype is torch.float32:
        return torch.from_numpy(numerics.canonical(y).view(np.int32))
    to = numerics.f32_to_bf16 if args[0].dtype is torch.bfloat16 else numerics.f32_to_fp16
    return torch.from_numpy(to(y).astype(np.uint16).view(np.int16))
