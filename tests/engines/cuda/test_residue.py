"""Products of residues in CUDA C++: every byte of every tile."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.exact import residue
from samebits.errors import DeviceError

MODULI = (256, 253, 251, 247, 241, 239, 233)
hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="runs on an sm_90 GPU",
)


@pytest.mark.parametrize("groups, columns", [(2, 256), (1, 48)])
def test_compiles_without_a_gpu(groups: int, columns: int) -> None:
    try:
        nvrtc.version()
    except DeviceError as error:
        pytest.skip(str(error))
    assert residue.cubin(groups, columns, 8, MODULI).startswith(b"\x7fELF")


def test_quotients_are_exact() -> None:
    """The kernel's rest of a lifted sum, for all sums that int32 products can have."""
    limit = 2**30
    for p, reciprocal, lift in residue.constants(MODULI):
        assert lift % p == 0 and lift >= limit and reciprocal < 2**32
        # x / p + x * (excess of the reciprocal) stays below the next whole number.
        excess = Fraction(reciprocal, 2**39) - Fraction(1, p)
        assert 0 <= excess * (lift + limit) < Fraction(1, p)


@hopper
@pytest.mark.parametrize(
    "tile",
    [
        {},
        {"columns": 128, "band": 16},
        {"groups": 1, "columns": 192},
        {"groups": 1, "columns": 64},
    ],
)
def test_bytes(tile: dict[str, int]) -> None:
    g = torch.Generator("cuda").manual_seed(0)
    for m, n, k in [(512, 1024, 512), (300, 272, 128), (5, 16, 256), (129, 4096, 1024)]:
        a, b = (
            torch.randint(-128, 128, (7, r, k), generator=g, device="cuda", dtype=torch.int8)
            for r in (m, n)
        )
        y = torch.full((7, m, n), 77, dtype=torch.uint8, device="cuda")
        residue.product(a, b, y, MODULI, **tile)
        sums = torch.matmul(a.double(), b.double().mT)  # exact
        p = torch.tensor(MODULI, device="cuda").double()[:, None, None]
        assert torch.equal(y, sums.remainder(p).to(torch.uint8))


def test_stages_fit() -> None:
    for groups in (1, 2):
        for columns in range(16, 257, 16):
            assert residue.shared(groups, columns) <= 227 << 10
