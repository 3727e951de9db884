"""Elementwise functions whose result at i depends on the arguments at i alone.

fp32, bf16 and fp16 are computed in fp32 (in fp64 inside) and rounded once; `samebits.contract`
(functions, functions64, trig, activations) has the exact definitions. Largest errors are in
docs/measured.md: 0.51 ulp of fp32 for most, below 2 ulp for all. Every function here takes the
arguments of torch's function of the same name and returns its shape, dtype and strides.

sigmoid, silu, gelu and their gates take CUDA tensors as well and give the CPU's bits, except that a
NaN is the GPU's (0x7fffffff, 0x7fff).

Raises (all): DTypeError for dtypes, layouts, devices without a contract (fp64, complex, integers,
sparse, CUDA, meta); SamebitsError where a gradient is required: it flows under the switch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from samebits.engines.cpu.pointwise import binary, gated, unary
from samebits.errors import ShapeError
from samebits.ops.checks import engine_tensor

Tensor = torch.Tensor
Approximate = Literal["none", "tanh"]
_GELU = {"none": "gelu", "tanh": "gelu_tanh"}
#: Exponents with IEEE formulas, as in torch.
_EXPONENTS = {
    2.0: "square", 3.0: "cube", 0.5: "square_root", -0.5: "rsqrt", -1.0: "reciprocal",
    -2.0: "inverse_square",
}  # fmt: skip


def _function(name: str, doc: str, kernel: str | None = None) -> Callable[[Tensor], Tensor]:
    run = kernel or name

    def function(x: Tensor) -> Tensor:
        if x.is_cuda:
            from samebits.ops.pointwise import cuda

            return cuda.unary(name, run, x)
        return unary(run, engine_tensor(name, x))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


exp = _function("exp", "``e ** x``.")
exp2 = _function("exp2", "``2 ** x``.")
expm1 = _function("expm1", "``e ** x - 1``.")
log = _function("log", "Natural logarithm.")
log2 = _function("log2", "Logarithm to base 2.")
log10 = _function("log10", "Logarithm to base 10.")
log1p = _function("log1p", "``log(1 + x)``.")
sqrt = _function("sqrt", "The correctly rounded square root.", "square_root")
rsqrt = _function("rsqrt", "``1 / sqrt(x)``: two IEEE operations.")
sin = _function("sin", "Sine; arguments of any size are reduced exactly.")
cos = _function("cos", "Cosine; arguments of any size are reduced exactly.")
tan = _function("tan", "Tangent; arguments of any size are reduced exactly.")
asin = _function("asin", "Arc sine.")
acos = _function("acos", "Arc cosine.")
atan = _function("atan", "Arc tangent.")
sinh = _function("sinh", "Hyperbolic sine.")
cosh = _function("cosh", "Hyperbolic cosine.")
tanh = _function("tanh", "Hyperbolic tangent.")
asinh = _function("asinh", "Inverse hyperbolic sine.")
acosh = _function("acosh", "Inverse hyperbolic cosine.")
atanh = _function("atanh", "Inverse hyperbolic tangent.")
erf = _function("erf", "Error function.")
erfc = _function("erfc", "``1 - erf(x)``.")
sigmoid = _function("sigmoid", "``1 / (1 + exp(-x))``.")
silu = _function("silu", "``x / (1 + exp(-x))``.")
mish = _function("mish", "``x * tanh(log(1 + exp(x)))``.")


def gelu(x: Tensor, approximate: Approximate = "none") -> Tensor:
    """``x * Phi(x)``, or its tanh approximation."""
    if x.is_cuda:
        from samebits.ops.pointwise import cuda

        return cuda.unary("gelu", _gelu(approximate), x)
    return unary(_gelu(approximate), engine_tensor("gelu", x))


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * x)) / beta``; x where ``beta * x > threshold``."""
    return unary("softplus", engine_tensor("softplus", x), beta, threshold)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where it is positive, else ``alpha * (exp(x) - 1)``."""
    return unary("elu", engine_tensor("elu", x), alpha, 1.0, 1.0)


def selu(x: Tensor) -> Tensor:
    """`elu` with the self-normalising constants of Klambauer et al. (2017)."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return unary("elu", engine_tensor("selu", x), alpha * scale, scale, 1.0)


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """``log(x / (1 - x))``, x clamped to [eps, 1 - eps] if `eps` is given."""
    return unary("logit", engine_tensor("logit", x), -1.0 if eps is None else eps)


def pow(x: Tensor, exponent: float | Tensor) -> Tensor:
    """``x ** exponent``. 2, 3, 1/2, -1/2, -1 and -2 are products, square roots and divisions."""
    x = engine_tensor("pow", x)
    if isinstance(exponent, Tensor):
        return binary("pow", x, engine_tensor("pow", exponent))
    return power(x, exponent)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """The angle of the point (x, y), in (-pi, pi]; shapes broadcast."""
    return binary("atan2", engine_tensor("atan2", y), engine_tensor("atan2", x))


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` in one pass over memory.

    The bits are those of the two operations: silu(gate) is rounded to the dtype before the
    product, so a model gives the same bits with or without the fusion.

    Args:
        gate, up: fp32, bf16 or fp16 of one dtype; shapes that broadcast.
    """
    if gate.is_cuda:
        from samebits.ops.pointwise import cuda

        return cuda.gated("silu_mul", "silu", gate, up)
    return gated("silu", engine_tensor("silu_mul", gate), engine_tensor("silu_mul", up))


def gelu_mul(gate: Tensor, up: Tensor, approximate: Approximate = "none") -> Tensor:
    """``gelu(gate) * up`` in one pass over memory, with the bits of the two operations."""
    kernel = _gelu(approximate)
    if gate.is_cuda:
        from samebits.ops.pointwise import cuda

        return cuda.gated("gelu_mul", kernel, gate, up)
    return gated(kernel, engine_tensor("gelu_mul", gate), engine_tensor("gelu_mul", up))


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """``a * sigmoid(b)`` for the halves a, b of `x` along `dim`, rounded once.

    Raises:
        ShapeError: the axis is odd.
    """
    x = engine_tensor("glu", x)
    if x.dim() == 0 or x.size(dim) % 2:
        raise ShapeError(f"glu: axis {dim} of {tuple(x.shape)} cannot be cut in two halves")
    return halves(x, dim)


# ---- what the switch calls: the tensors are known to be the engine's, autograd is torch's -------


def power(x: Tensor, exponent: float) -> Tensor:
    """`pow` of an engine tensor and a number."""
    if exponent in _EXPONENTS:
        return unary(_EXPONENTS[exponent], x)
    return x.clone() if exponent == 1.0 else unary("pow_exponent", x, exponent)


def halves(x: Tensor, dim: int) -> Tensor:
    """`glu` of an engine tensor."""
    a, b = x.chunk(2, dim)
    return binary("glu", a, b)


def _gelu(approximate: str) -> str:
    if approximate not in _GELU:
        raise ShapeError(f"gelu: approximate={approximate!r} is not 'none' or 'tanh'")
    return _GELU[approximate]
