"""Running sums on a GPU (or in Triton's interpreter) have the CPU engine's bits."""

from __future__ import annotations

import pytest
import torch

from interpreter import INTERPRETED
from samebits import bits
from samebits.engines.cpu import norm as cpu

pytest.importorskip("triton")
from samebits.engines.triton.rows import scan

DEVICE = "cpu" if INTERPRETED else "cuda"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("shape", "axis"), [((1, 1), 1), ((3, 40), 1), ((33, 17), 0), ((2, 19, 5), 1), ((50,), 0)]
)
def test_a_chain_is_that_of_the_cpu(shape: tuple[int, ...], axis: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ldexp(torch.randn(shape), torch.randint(-9, 9, shape)).to(dtype)
    for product in (False, True):
        for out in {dtype, torch.float32}:
            expected = cpu.scan(x, axis, out, product)
            assert bits.equal(scan.scan(x.to(DEVICE), axis, out, product).cpu(), expected)


def test_a_prefix_does_not_depend_on_what_follows() -> None:
    x = torch.randn(2, 50, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    whole = scan.scan(x, 1, torch.float32, False)
    for length in (1, 15, 16, 17, 49):
        part = scan.scan(x[:, :length], 1, torch.float32, False)
        assert bits.equal(part, whole[:, :length]), length
