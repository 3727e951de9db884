"""The mended interpreter computes what the chip computes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import samebits as sb
from interpreter import INTERPRETED

if not INTERPRETED:
    pytest.skip("a GPU is here: kernels run on it", allow_module_level=True)
tl = pytest.importorskip("triton.language")
triton = pytest.importorskip("triton")


@triton.jit
def _product(x, w, y, bits, K, B: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.arange(0, 16)
    k = tl.arange(0, B)
    acc = tl.zeros([16, 16], tl.float32)
    for k0 in range(0, K, B):
        a = tl.load(x + rows[:, None] * K + k0 + k[None, :])
        b = tl.load(w + rows[None, :] * K + k0 + k[:, None])
        acc = tl.dot(a, b, acc)
    at = rows[:, None] * 16 + rows[None, :]
    tl.store(y + at, acc)
    tl.store(bits + at, acc.to(bits.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block", [16, 64])
def test_a_dot_has_the_bits_of_the_contract(dtype: torch.dtype, block: int) -> None:
    torch.manual_seed(0)
    x, w = ((torch.randn(16, 256) * torch.exp2(torch.randn(16, 256) * 3)).to(dtype) for _ in "xw")
    y, rounded = torch.empty(16, 16), torch.empty(16, 16, dtype=dtype)
    _product[(1,)](x, w, y, rounded, 256, B=block)
    contract = sb.contract_of("linear", n=4096, k=256, dtype=dtype, device="sm_90")
    want = contract.evaluate(x, w)
    assert torch.equal(y.view(torch.int32), want.view(torch.int32))
    assert torch.equal(rounded.view(torch.int16), want.to(dtype).view(torch.int16))


@triton.jit
def _convert(x, y, z, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    narrow = tl.load(x + at).to(y.dtype.element_ty)
    tl.store(y + at, narrow)
    tl.store(z + at, narrow.to(tl.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_conversions_round_once_to_nearest_even(dtype: torch.dtype) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1024, np.uint32)
    x = torch.from_numpy(bits.view(np.float32))
    x[:512] = torch.randn(512)
    y, z = torch.empty(1024, dtype=dtype), torch.empty(1024)
    _convert[(1,)](x, y, z, N=1024)
    want = x.clamp(-448, 448) if dtype is torch.float8_e4m3fn else x
    want = torch.where(x.isnan(), x, want).to(dtype)
    assert torch.equal(z.nan_to_num(1.5), want.float().nan_to_num(1.5))
    assert torch.equal(z.isnan(), want.isnan())


@triton.jit
def _fma(x, y, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(y + at, tl.fma(v, v, -1.0))


def test_an_fma_rounds_once() -> None:
    x = 1 + torch.rand(256) * 1e-4
    y = torch.empty(256)
    _fma[(1,)](x, y, N=256)
    assert torch.equal(y, (x.double() * x.double() - 1).float())
    assert not torch.equal(y, x * x - 1)
    x = x.double() + torch.rand(256, dtype=torch.float64) * 2.0**-30
    y = torch.empty(256, dtype=torch.float64)
    _fma[(1,)](x, y, N=256)
    want = [float(Fraction(v) ** 2 - 1) for v in x.tolist()]
    assert y.tolist() == want
    assert (x * x - 1).tolist() != want


@triton.jit
def _best(key, value, key1, value1):  # type: ignore[no-untyped-def]
    """The larger key with its value; of equal ones the first."""
    later = key1 > key
    return tl.where(later, key1, key), tl.where(later, value1, value)


@triton.jit
def _folded(x, reduced, best, at, scanned, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    rows, columns = tl.arange(0, R), tl.arange(0, C)
    where = rows[:, None] * C + columns[None, :]
    v = tl.load(x + where)
    column = tl.broadcast_to(columns[None, :], [R, C])
    key, value = tl.reduce((v, column), 1, _best)
    tl.store(best + rows, key)
    tl.store(at + rows, value)
    tl.store(reduced + columns[None, :], tl.reduce((v, v), 0, _best, keep_dims=True)[0])
    tl.store(scanned + where, tl.associative_scan((v, v), 1, _best, reverse=True)[0])


def test_reductions_and_scans_take_any_function() -> None:
    x = torch.randint(0, 50, (8, 32), generator=torch.Generator().manual_seed(0)).float()
    best, reduced, scanned = torch.empty(8), torch.empty(32), torch.empty(8, 32)
    at = torch.empty(8, dtype=torch.int32)
    _folded[(1,)](x, reduced, best, at, scanned, R=8, C=32)
    assert torch.equal(best, x.amax(1)) and torch.equal(reduced, x.amax(0))
    assert torch.equal(at.long(), (x == x.amax(1, keepdim=True)).int().argmax(1))
    assert torch.equal(scanned, x.flip(1).cummax(1).values.flip(1))
