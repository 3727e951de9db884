"""The public elementwise functions: fusions change no bits, and both front doors agree."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import samebits
from samebits import bits
from samebits.errors import DTypeError, SamebitsError
from samebits.ops import pointwise as ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_gates_equal_two_operations(isa: str, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    gate = (torch.randn(37, 53, generator=g) * 4).to(dtype)
    up = (torch.randn(37, 53, generator=g) * 4).to(dtype)
    with samebits.deterministic():
        pairs = [(ops.silu_mul(gate, up), F.silu(gate) * up),
                 (ops.gelu_mul(gate, up), F.gelu(gate) * up),
                 (ops.gelu_mul(gate, up, "tanh"), F.gelu(gate, approximate="tanh") * up),
                 (ops.silu_mul(gate, up[:1]), F.silu(gate) * up[:1]),
                 (ops.silu_mul(gate.t(), up.t()), F.silu(gate.t()) * up.t()),
                 (ops.silu(gate), F.silu(gate)), (ops.softplus(up, 2.0), F.softplus(up, 2.0)),
                 (ops.glu(gate[:, :52]), F.glu(gate[:, :52])),
                 (ops.power(up, 3.0), up**3), (ops.tanh(up), up.tanh())]  # fmt: skip
    for got, want in pairs:
        assert bits.equal(got, want)


def test_a_row_has_the_same_bits_alone(isa: str) -> None:
    x = torch.randn(50, 301)
    for function in (ops.silu, ops.gelu, ops.sigmoid, ops.softplus, ops.tanh):
        whole = function(x)
        assert all(bits.equal(whole[i], function(x[i])) for i in range(50))


PUBLIC = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
    "sigmoid", "silu", "mish", "gelu", "softplus", "elu", "selu", "logit",
)  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_functions_are_those_of_the_switch(name: str) -> None:
    x = torch.rand(50) * 0.8 + 0.1
    stock = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    with samebits.deterministic():
        want = stock(x)
    assert bits.equal(getattr(ops, name)(x), want)
    torch.testing.assert_close(want, stock(x), rtol=2e-6, atol=2e-6, equal_nan=True)


def test_dtypes_without_a_contract() -> None:
    for x in (torch.ones(3, dtype=torch.float64), torch.arange(3), torch.ones(3, device="meta")):
        for name in PUBLIC:
            with pytest.raises(DTypeError, match=name):
                getattr(ops, name)(x)
    with pytest.raises(SamebitsError, match="no backward"):
        ops.tanh(torch.ones(3, requires_grad=True))
    with pytest.raises(DTypeError, match="convert"):
        ops.silu_mul(torch.ones(3), torch.ones(3).half())
