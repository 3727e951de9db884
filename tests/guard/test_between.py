"""Gates and rotary embedding from recorded rows: torch's own bits under the switch."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import samebits
from samebits.contract.operands import dtype_name
from samebits.errors import ReceiptError
from samebits.guard.receipts.between import Between
from samebits.guard.receipts.operands import Attended, Gated, Product, Rotated, words

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
N = 64


def row(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of all sizes, and special ones at the places of `seed`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, generator=generator) * 2.0 ** torch.randint(-9, 5, (N,), generator=generator)
    x[seed : seed + 4] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    return x.to(dtype)


def product(place: str, x: torch.Tensor, y: torch.Tensor) -> Product:
    return Product(
        place=place, position=3, dtype=dtype_name(x.dtype), k=len(x), n=len(y), x=words(x),
        y=words(y), bias=False,
    )  # fmt: skip


def gate(dtype: torch.dtype, function: str = "silu") -> tuple[list[Product], Gated]:
    x, up = row(dtype, 1), row(dtype, 20)
    with samebits.deterministic():
        y = (F.silu(x) if function == "silu" else F.gelu(x, approximate="tanh")) * up
    kept = [product("g", x[:1], x), product("u", x[:1], up), product("d", y, y[:1])]
    return kept, Gated(
        place="mlp", position=3, dtype=dtype_name(dtype), n=N, function=function,
        gate="g", up="u", down="d",
    )  # fmt: skip


@pytest.mark.parametrize("function", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gates(dtype: torch.dtype, function: str) -> None:
    kept, sample = gate(dtype, function)
    was, computed = Between([*kept, sample]).rows(sample)
    assert len(was) == N and np.array_equal(was, computed)
    raw = np.frombuffer(kept[2].x, np.uint8).copy()
    raw[50 * (len(raw) // N)] ^= 1
    changed = msgspec.structs.replace(kept[2], x=raw.tobytes())
    was, computed = Between([*kept[:2], changed, sample]).rows(sample)
    assert np.flatnonzero(was != computed).tolist() == [50]


def rotation(dtype: torch.dtype) -> tuple[Product, Attended, Rotated]:
    x, angles = row(dtype, 5), torch.linspace(0, 300, N)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    with samebits.deterministic():
        q = x * cos + torch.cat((-x[N // 2 :], x[: N // 2])) * sin
    attended = Attended(
        place="attn", position=3, dtype=dtype_name(dtype), head=1, d=N, dv=1, keys=1, q=words(q),
        k=words(q), v=words(q[:1]), y=words(q[:1]), seen=None, scale=None, softcap=None, sink=None,
    )  # fmt: skip
    rotated = Rotated(
        place="attn", position=3, dtype=dtype_name(dtype), head=1, n=N, query="q", cos=words(cos),
        sin=words(sin),
    )  # fmt: skip
    return product("q", x[:1], torch.cat([x * 3, x])), attended, rotated


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rotations(dtype: torch.dtype) -> None:
    q, attended, sample = rotation(dtype)
    was, computed = Between([q, sample, attended]).rows(sample)
    assert len(was) == N and np.array_equal(was, computed)
    raw = np.frombuffer(attended.q, np.uint8).copy()
    raw[60 * (len(raw) // N)] ^= 1
    changed = msgspec.structs.replace(attended, q=raw.tobytes())
    was, computed = Between([q, sample, changed]).rows(sample)
    assert np.flatnonzero(was != computed).tolist() == [60]


def test_operands_that_do_not_fit_are_refused() -> None:
    kept, sample = gate(torch.bfloat16)
    q, attended, rotated = rotation(torch.bfloat16)
    cut = msgspec.structs.replace(kept[0], y=kept[0].y[:-2])
    for samples, which in (
        (kept[1:], sample),
        ([cut, *kept[1:]], sample),
        (kept, msgspec.structs.replace(sample, function="relu")),
        ([q], rotated),
        ([q, msgspec.structs.replace(attended, head=0)], rotated),
        ([msgspec.structs.replace(q, y=q.y[:-2]), attended], rotated),
    ):
        with pytest.raises(ReceiptError, match=f"the operands that {which.place} needs do not fit"):
            Between(samples).rows(which)
