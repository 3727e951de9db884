"""Elementwise functions whose result at i depends on the arguments at i alone.

fp32, bf16 and fp16 are computed in fp32 (in fp64 inside) and rounded once; `samebits.contract`
(functions, functions64, trig, activations) has the exact definitions. Largest errors are in
docs/measured.md: 0.51 ulp of fp32 for most, below 2 ulp for all. Every function here takes the
arguments of torch's function of the same name and returns its shape, dtype and strides.

Raises (all): DTypeError for dtypes without a contract (fp64, complex, integers).
"""

from __future__ import annotations

from typing import Literal

import torch

from samebits.engines.cpu.pointwise import binary, gated, unary

__all__ = [
    "exp",
    "gelu",
    "gelu_mul",
    "glu",
    "power",
    "sigmoid",
    "silu",
    "silu_mul",
    "softplus",
    "tanh",
]

Tensor = torch.Tensor
Approximate = Literal["none", "tanh"]
_GELU = {"none": "gelu", "tanh": "gelu_tanh"}
#: Exponents with IEEE formulas, as in torch.
_EXPONENTS = {
    2.0: "square", 3.0: "cube", 0.5: "square_root", -0.5: "rsqrt", -1.0: "reciprocal",
    -2.0: "inverse_square",
}  # fmt: skip


def exp(x: Tensor) -> Tensor:
    """``e ** x``."""
    return unary("exp", x)


def silu(x: Tensor) -> Tensor:
    """``x / (1 + exp(-x))``."""
    return unary("silu", x)


def gelu(x: Tensor, approximate: Approximate = "none") -> Tensor:
    """``x * Phi(x)``, or its tanh approximation."""
    return unary(_GELU[approximate], x)


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return unary("sigmoid", x)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return unary("tanh", x)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * x)) / beta``; x where ``beta * x > threshold``."""
    return unary("softplus", x, beta, threshold)


def power(x: Tensor, exponent: float) -> Tensor:
    """``x ** exponent``. 2, 3, 1/2, -1/2, -1 and -2 are products, square roots and divisions."""
    if exponent in _EXPONENTS:
        return unary(_EXPONENTS[exponent], x)
    return x.clone() if exponent == 1.0 else unary("pow_exponent", x, exponent)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` in one pass over memory.

    The bits are those of the two operations: silu(gate) is rounded to the dtype before the
    product, so a model gives the same bits with or without the fusion.

    Args:
        gate, up: fp32, bf16 or fp16 of one dtype; shapes that broadcast.
    """
    return gated("silu", gate, up)


def gelu_mul(gate: Tensor, up: Tensor, approximate: Approximate = "none") -> Tensor:
    """``gelu(gate) * up`` in one pass over memory, with the bits of the two operations."""
    return gated(_GELU[approximate], gate, up)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """``a * sigmoid(b)`` for the halves a, b of `x` along `dim`, rounded once."""
    a, b = x.chunk(2, dim)
    return binary("glu", a, b)
