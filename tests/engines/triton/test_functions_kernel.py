"""Elementary functions in kernels have the bits of their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interpreter import INTERPRETED
from samebits.contract import activations, functions
from samebits.engines.triton.launch import launch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from samebits.engines.triton import functions as kernels  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"


@triton.jit
def apply_kernel(x, y, n, F: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, at < n, other=0.0)
    if F == "exp":
        v = kernels.exp(v)
    elif F == "exp_flush":
        v = kernels.exp_flush(v)
    elif F == "log":
        v = kernels.log(v)
    elif F == "log1p":
        v = kernels.log1p(v)
    elif F == "sigmoid":
        v = kernels.sigmoid(v)
    elif F == "gelu":
        v = kernels.gelu(v)
    elif F == "gelu_tanh":
        v = kernels.gelu_tanh(v)
    else:
        v = kernels.silu(v)
    tl.store(y + at, v, at < n)


@pytest.mark.parametrize(
    "name", ["exp", "exp_flush", "log", "log1p", "sigmoid", "silu", "gelu", "gelu_tanh"]
)
def test_function(name: str) -> None:
    g = np.random.default_rng(0)
    count = 1 << (14 if INTERPRETED else 22)
    words = g.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    near = (g.standard_normal(count) * 2.0 ** g.integers(-30, 8, count)).astype(np.float32)
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0, 1e-45, -104, 88.7, -88])
    x = np.concatenate([words.view(np.float32), near, special])
    got = torch.empty(len(x), device=DEVICE)
    launch(apply_kernel, (triton.cdiv(len(x), 1024),), torch.from_numpy(x).to(DEVICE), got, len(x),
           F=name, BLOCK=1024)  # fmt: skip
    want = getattr(functions if hasattr(functions, name) else activations, name)
    with np.errstate(all="ignore"):
        expected = want(x)
    found = got.cpu().numpy()
    nan = np.isnan(expected)
    assert (np.isnan(found) == nan).all()
    wrong = (found.view(np.uint32) != expected.view(np.uint32)) & ~nan
    assert not wrong.any(), (x[wrong][:5], found[wrong][:5], expected[wrong][:5])
