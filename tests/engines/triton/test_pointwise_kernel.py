"""Elementwise kernels have the CPU's bits: for every bf16 and fp16 argument, and many of fp32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import interpreter
from interpreter import INTERPRETED, chips_nan
from samebits import bits, ops
from samebits.contract import activations

pytest.importorskip("triton")
from samebits.engines.triton.rows import pointwise

DEVICE = "cpu" if INTERPRETED else "cuda"


def arguments(dtype: torch.dtype) -> torch.Tensor:
    if dtype is not torch.float32:
        return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    g = np.random.default_rng(0)
    count = 1 << (12 if INTERPRETED else 20)
    words = g.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = g.standard_normal(count) * 2.0 ** g.integers(-20, 6, count)
    near[:5] = -np.inf, np.inf, np.nan, 0.0, -0.0
    return torch.from_numpy(np.concatenate([words, near.astype(np.float32)]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", sorted(pointwise.FUNCTIONS))
def test_every_argument(name: str, dtype: torch.dtype) -> None:
    x = arguments(dtype)
    with np.errstate(all="ignore"):
        want = torch.from_numpy(getattr(activations, name)(x.float().numpy())).to(dtype)
    assert bits.equal(pointwise.unary(name, x.to(DEVICE)).cpu(), chips_nan(want))


@pytest.mark.skipif(not INTERPRETED, reason="a chip has one reciprocal")
@pytest.mark.parametrize("toward", [-np.inf, np.inf])
@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_the_last_bit_of_a_reciprocal_does_not_matter(
    name: str, toward: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(x: np.ndarray) -> np.ndarray:
        return np.nextafter(np.reciprocal(x), np.float32(toward))

    x = arguments(torch.bfloat16)
    want = pointwise.unary(name, x)
    monkeypatch.setattr(interpreter, "RECIPROCAL", other)
    assert bits.equal(pointwise.unary(name, x), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gates_of_strided_rows(dtype: torch.dtype) -> None:
    x = (torch.randn(5, 2 * 1500, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    gate, up = x.chunk(2, -1)
    gate_on, up_on = x.to(DEVICE).chunk(2, -1)
    for name, want in [
        ("silu", ops.silu_mul(gate, up)),
        ("gelu", ops.gelu_mul(gate, up)),
        ("gelu_tanh", ops.gelu_mul(gate, up, "tanh")),
    ]:
        assert bits.equal(pointwise.gated(name, gate_on, up_on).cpu(), want)
        dense = pointwise.gated(name, gate_on.contiguous(), up_on.contiguous())
        assert bits.equal(dense.cpu(), want)


def test_gates_of_more_rows_than_a_grid_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "MOST_ROWS", 2)
    gate, up = torch.randn(5, 40, generator=torch.Generator().manual_seed(1)).chunk(2, -1)
    on = torch.cat((gate, up), 1).to(DEVICE).chunk(2, -1)
    assert bits.equal(pointwise.gated("silu", *on).cpu(), ops.silu_mul(gate, up))
