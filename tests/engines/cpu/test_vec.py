"""The vector primitives mean the same on every instruction set."""

from __future__ import annotations

import math

import pytest
import torch

from samebits import bits
from samebits.engines import cpu
from samebits.engines.cpu import _cpu

SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.5, math.inf, -math.inf, math.nan, 1e-40, -1e-45, 3.4e38, -7.5,
           2147483648.0, -2147483648.0, 0.5, 1.1754944e-38]  # fmt: skip
BINARY_OPS = range(22)


def lanes(seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    if seed % 4 == 0:
        pick = torch.randint(0, len(SPECIAL), (16,), generator=g)
        return torch.tensor(SPECIAL)[pick]
    x = torch.randn(16, generator=g) * 2.0 ** torch.randint(-20, 20, (16,), generator=g)
    return x.where(torch.rand(16, generator=g) < 0.8, torch.tensor(SPECIAL))


@pytest.mark.parametrize("op", BINARY_OPS)
def test_primitives_agree_with_scalar(isa: str, op: int) -> None:
    for seed in range(60):
        a, b, c = lanes(seed), lanes(seed + 1), lanes(seed + 2)
        got, want = torch.empty(16), torch.empty(16)
        _cpu.probe_binary(op, a.data_ptr(), b.data_ptr(), c.data_ptr(), got.data_ptr())
        cpu.set_isa("scalar")
        _cpu.probe_binary(op, a.data_ptr(), b.data_ptr(), c.data_ptr(), want.data_ptr())
        cpu.set_isa(isa)
        assert bits.equal(got, want), (op, seed, a, b, c, got, want)


def test_fold_is_8_4_2_1(isa: str) -> None:
    for seed in range(1, 50, 2):
        x = torch.stack([lanes(4 * seed + i % 3 + 1) for i in range(16)]).nan_to_num(1.0, 2.0, 3.0)
        want = x.clone()
        for width in (8, 4, 2, 1):
            want = want[:, :width] + want[:, width : 2 * width]
        got = torch.empty(16)
        _cpu.probe_fold16(x.data_ptr(), got.data_ptr())
        assert bits.equal(got, want[:, 0])
        assert [_cpu.probe_fold(row.data_ptr()) for row in x] == want[:, 0].tolist()


@pytest.mark.parametrize(("code", "dtype"), [(1, torch.bfloat16), (2, torch.float16)])
def test_conversions(isa: str, code: int, dtype: torch.dtype) -> None:
    every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).reshape(-1, 16)
    wide = torch.empty(every.shape)
    for i in range(len(every)):
        _cpu.probe_widen(code, every[i].data_ptr(), wide[i].data_ptr())
    stock = every.view(dtype).float()
    stock[stock.isnan()] = math.nan
    assert bits.equal(wide, stock)

    g = torch.Generator().manual_seed(7)
    words = torch.randint(-(2**31), 2**31 - 1, (4096, 16), generator=g, dtype=torch.int64)
    halfway = (wide[1:] + wide[:-1]) / 2  # ties between neighbouring values
    for x in (words.to(torch.int32).view(torch.float32), halfway):
        got = torch.empty(x.shape, dtype=torch.int16)
        for i in range(len(x)):
            _cpu.probe_narrow(code, x[i].data_ptr(), got[i].data_ptr())
        want = x.to(dtype)
        want[x.isnan()] = math.nan
        canonical = {torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}[dtype]
        expected = want.view(torch.int16).clone()
        expected[x.isnan()] = canonical
        assert torch.equal(got, expected)
