"""Overrides of elementwise functions.

torch's vector loops and their scalar tails use different code for some functions, so an element's
bits depend on where it lies (tests/mode/explore_elementwise.py finds which). fp32, bf16 and fp16 go
to the engine. fp64 has no engine: a function that torch computes alike everywhere stays on stock,
the others run through torch's scalar code only (`scalar_code`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu.pointwise import binary, result_like, unary
from samebits.mode.fallback import EXACT_DTYPES, Stock, stock
from samebits.mode.registry import aten
from samebits.ops import pointwise
from samebits.ops.pointwise import halves, power

Tensor = torch.Tensor
Fn = Callable[..., Any]


def scalar_code(call: Fn, *tensors: Tensor) -> Tensor:
    """Runs an elementwise stock kernel so that only its scalar loop is used.

    The operands are laid out two elements apart: torch vectorises dense memory only, so each
    element meets the same code whatever its place. One element is added because torch treats a
    tensor of one element as a number.
    """
    like = result_like(*tensors)
    n = like.numel()
    spread = []
    for x in tensors:
        room = x.new_zeros(2 * n + 2)[::2]
        room[:n].copy_(x.expand(like.shape).reshape(-1))
        spread.append(room)
    y: Tensor = call(*spread)[:n].reshape(like.shape)
    return y.new_empty_strided(like.shape, like.stride()).copy_(y)


def _promoted(original: Stock, spread: bool, fn: Fn, x: Tensor, *rest: Any) -> Any:
    """The slow path of functions of one tensor: dtypes that the engine does not take."""
    if x.dtype in EXACT_DTYPES:
        return fn(x.to(torch.get_default_dtype()), *rest)
    if x.dtype is torch.float64:
        if spread:
            return scalar_code(lambda t: original(t, *rest), x)
        return original(x, *rest)
    return original.by_dtype(x.dtype, x, *rest)


#: aten name -> fp64 needs `scalar_code`; the engine's kernel has the same name but for _KERNEL
_PLAIN = {
    "exp": False, "exp2": True, "expm1": False, "log": False, "log2": False, "log10": False,
    "log1p": False, "sinh": True, "cosh": True, "tanh": False, "asinh": False, "acosh": False,
    "atanh": True, "sin": False, "cos": False, "tan": False, "asin": False, "acos": False,
    "atan": False, "erf": False, "erfc": False, "sigmoid": True, "silu": True, "mish": True,
    "rsqrt": False, "sqrt": False,
}  # fmt: skip
_KERNEL = {"sqrt": "square_root"}  # stock's (MKL's) is not correctly rounded


def _plain(name: str, spread: bool) -> None:
    original, kernel = stock(name), _KERNEL.get(name, name)

    @aten(name)
    def function(self: Tensor) -> Any:
        if self.dtype in DTYPE_CODE:
            return unary(kernel, self)
        return _promoted(original, spread, function, self)


for _name, _spread in _PLAIN.items():
    _plain(_name, _spread)


# On a GPU torch computes every element by itself. These have kernels of ours, too, so that they
# have the bits of the fused gates (`ops.silu_mul`) and of a CPU.


def _on_gpu(name: str) -> None:
    original = stock(name)

    @aten(name, key="CUDA")
    def function(self: Tensor) -> Any:
        if self.dtype in DTYPE_CODE:
            return getattr(pointwise, name)(self.detach())
        return original(self)


_on_gpu("silu")
_on_gpu("sigmoid")


@aten("gelu", key="CUDA")
def gelu_on_gpu(self: Tensor, *, approximate: str = "none") -> Any:
    if self.dtype in DTYPE_CODE and approximate in _GELU_NAMES:
        return pointwise.gelu(self.detach(), approximate)  # type: ignore[arg-type]
    return _GELU(self, approximate=approximate)


# ---- activations with parameters ---------------------------------------------------------------

_GELU, _ELU, _SOFTPLUS = stock("gelu"), stock("elu"), stock("softplus")
_LOGIT, _SOFTSHRINK = stock("logit"), stock("softshrink")
_GELU_NAMES = {"none": "gelu", "tanh": "gelu_tanh"}


@aten("gelu")
def gelu(self: Tensor, *, approximate: str = "none") -> Any:
    if self.dtype in DTYPE_CODE and approximate in _GELU_NAMES:
        return unary(_GELU_NAMES[approximate], self)
    if self.dtype is torch.float64:
        return scalar_code(lambda t: _GELU(t, approximate=approximate), self)
    if self.dtype in DTYPE_CODE:
        return _GELU(self, approximate=approximate)  # torch's own error
    return _GELU.by_dtype(self.dtype, self, approximate=approximate)


@aten("elu")
def elu(self: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    if self.dtype in DTYPE_CODE:
        return unary("elu", self, alpha * scale, scale, input_scale)
    return _promoted(_ELU, True, elu, self, alpha, scale, input_scale)


@aten("softplus")
def softplus(self: Tensor, beta: float = 1, threshold: float = 20) -> Any:
    if self.dtype in DTYPE_CODE:
        return unary("softplus", self, beta, threshold)
    return _promoted(_SOFTPLUS, True, softplus, self, beta, threshold)


@aten("softshrink")
def softshrink(self: Tensor, lambd: float = 0.5) -> Any:
    if self.dtype in DTYPE_CODE and lambd >= 0:
        return unary("softshrink", self, lambd)
    return _promoted(_SOFTSHRINK, True, softshrink, self, lambd)


@aten("logit")
def logit(self: Tensor, eps: float | None = None) -> Any:
    if self.dtype in DTYPE_CODE:
        return unary("logit", self, -1.0 if eps is None or eps < 0 else eps)
    return _promoted(_LOGIT, True, logit, self, eps)


@aten("glu")
def gated_linear_unit(self: Tensor, dim: int = -1) -> Any:
    if self.dtype in DTYPE_CODE and self.dim() and self.shape[dim] % 2 == 0:
        return halves(self, dim).contiguous()
    if self.dtype is torch.float64 and self.dim() and self.shape[dim] % 2 == 0:
        a, b = self.chunk(2, dim)
        return a * torch.sigmoid(b)
    return _GLU.by_dtype(torch.int64, self, dim)  # torch's own error


_GLU, _SIGMOID_BACKWARD = stock("glu"), stock("sigmoid_backward")


@aten("glu_backward")
def glu_backward(grad_output: Tensor, self: Tensor, dim: int) -> Any:
    a, b = self.chunk(2, dim)
    s = torch.sigmoid(b)
    return torch.cat([grad_output * s, _SIGMOID_BACKWARD(grad_output * a, s)], dim)


# ---- functions of two tensors (torch passes a Python number as it is) ---------------------------


def _as(x: Any, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if isinstance(x, Tensor) else torch.tensor(x, dtype=dtype)


def _pair(name: str, kernel: str, exact_integers: bool = False) -> Fn:
    original = stock(name)

    @aten(name)
    def function(self: Any, other: Any) -> Any:
        tensors = isinstance(self, Tensor) and isinstance(other, Tensor)
        if tensors and self.dtype is other.dtype and self.dtype in DTYPE_CODE:
            return binary(kernel, self, other)
        dtype = torch.result_type(self, other)
        if dtype in EXACT_DTYPES:
            if exact_integers:
                return original(_as(self, dtype), _as(other, dtype))
            dtype = torch.get_default_dtype()
        if dtype in DTYPE_CODE:
            return binary(kernel, _as(self, dtype), _as(other, dtype))
        if dtype is torch.float64:
            return scalar_code(original, _as(self, dtype), _as(other, dtype))
        return original.by_dtype(dtype, self, other)

    return function


for _name in ("atan2", "hypot", "logaddexp", "logaddexp2"):
    _pair(_name, _name)
_xlogy = _pair("xlogy.Tensor", "xlogy")
_pow = _pair("pow.Tensor_Tensor", "pow", exact_integers=True)
# IEEE 754-2019: NaN wins, +0 is above -0. torch's vector code returns either zero.
for _name in ("maximum", "minimum"):
    _pair(_name, _name, exact_integers=True)
_POW_EXPONENT, _POW_BASE = stock("pow.Tensor_Scalar"), stock("pow.Scalar")


@aten("pow.Tensor_Scalar")
def pow_exponent(self: Tensor, exponent: Any) -> Any:
    dtype = self.dtype
    if dtype not in DTYPE_CODE or isinstance(exponent, complex):
        dtype = torch.result_type(self, exponent)
        if dtype in EXACT_DTYPES:
            return _POW_EXPONENT(self, exponent)
        if dtype is torch.float64:
            return scalar_code(lambda t: _POW_EXPONENT(t, exponent), self.to(dtype))
        if dtype not in DTYPE_CODE:
            return _POW_EXPONENT.by_dtype(dtype, self, exponent)
        self = self.to(dtype)
    return power(self, float(exponent))


@aten("pow.Scalar")
def pow_base(self: Any, exponent: Tensor) -> Any:
    dtype = exponent.dtype
    if dtype not in DTYPE_CODE or isinstance(self, complex):
        dtype = torch.result_type(self, exponent)
        if dtype in EXACT_DTYPES:
            return _POW_BASE(self, exponent)
        if dtype is torch.float64:
            return scalar_code(lambda t: _POW_BASE(self, t), exponent.to(dtype))
        if dtype not in DTYPE_CODE:
            return _POW_BASE.by_dtype(dtype, self, exponent)
        exponent = exponent.to(dtype)
    return unary("pow_base", exponent, float(self))


# ---- derivatives -------------------------------------------------------------------------------


def _gradient(original: Stock, kernel: str, g: Tensor, x: Tensor, params: Any, rest: Any) -> Any:
    if g.dtype is x.dtype and g.dtype in DTYPE_CODE:
        return binary(kernel, g, x, *params)
    dtype = torch.result_type(g, x)
    if dtype in DTYPE_CODE:
        return binary(kernel, g.to(dtype), x.to(dtype), *params)
    if dtype is torch.float64:
        return scalar_code(lambda a, b: rest(original, a, b), g.to(dtype), x.to(dtype))
    original.uncovered(f"no contract covers {dtype}", g, x)
    return rest(original, g, x)


_BACKWARD = {n: stock(n) for n in (
    "silu_backward", "mish_backward", "gelu_backward", "softplus_backward", "elu_backward",
    "logit_backward", "hardtanh_backward", "hardswish_backward", "hardshrink_backward",
    "softshrink_backward",
)}  # fmt: skip


def _plain_gradient(name: str) -> None:
    @aten(name)
    def function(grad_output: Tensor, self: Tensor) -> Any:
        return _gradient(_BACKWARD[name], name, grad_output, self, (), lambda f, g, x: f(g, x))


for _name in ("silu_backward", "mish_backward", "hardswish_backward"):
    _plain_gradient(_name)


@aten("gelu_backward")
def gelu_backward(grad_output: Tensor, self: Tensor, *, approximate: str = "none") -> Any:
    name = "gelu_tanh_backward" if approximate == "tanh" else "gelu_backward"
    return _gradient(
        _BACKWARD["gelu_backward"], name, grad_output, self, (),
        lambda f, g, x: f(g, x, approximate=approximate),
    )  # fmt: skip


@aten("softplus_backward")
def softplus_backward(grad_output: Tensor, self: Tensor, beta: float, threshold: float) -> Any:
    return _gradient(
        _BACKWARD["softplus_backward"], "softplus_backward", grad_output, self, (beta, threshold),
        lambda f, g, x: f(g, x, beta, threshold),
    )  # fmt: skip


@aten("elu_backward")
def elu_backward(
    grad_output: Tensor,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    self_or_result: Tensor,
) -> Any:
    name = "elu_backward_result" if is_result else "elu_backward"
    return _gradient(
        _BACKWARD["elu_backward"], name, grad_output, self_or_result,
        (alpha * scale, scale, input_scale),
        lambda f, g, x: f(g, alpha, scale, input_scale, is_result, x),
    )  # fmt: skip


@aten("logit_backward")
def logit_backward(grad_output: Tensor, self: Tensor, eps: float | None = None) -> Any:
    return _gradient(
        _BACKWARD["logit_backward"], "logit_backward", grad_output, self,
        (-1.0 if eps is None or eps < 0 else eps,), lambda f, g, x: f(g, x, eps),
    )  # fmt: skip


@aten("hardtanh_backward")
def hardtanh_backward(grad_output: Tensor, self: Tensor, min_val: float, max_val: float) -> Any:
    return _gradient(
        _BACKWARD["hardtanh_backward"], "hardtanh_backward", grad_output, self,
        (min_val, max_val), lambda f, g, x: f(g, x, min_val, max_val),
    )  # fmt: skip


@aten("hardshrink_backward")
def hardshrink_backward(grad_out: Tensor, self: Tensor, lambd: float) -> Any:
    return _gradient(
        _BACKWARD["hardshrink_backward"], "shrink_backward", grad_out, self, (lambd,),
        lambda f, g, x: f(g, x, lambd),
    )  # fmt: skip


@aten("softshrink_backward")
def softshrink_backward(grad_output: Tensor, self: Tensor, lambd: float) -> Any:
    return _gradient(
        _BACKWARD["softshrink_backward"], "shrink_backward", grad_output, self, (lambd,),
        lambda f, g, x: f(g, x, lambd),
    )  # fmt: skip


# ---- stock's scalar code: rare functions of which stock's vector code differs --------------------


def _scalar_only(name: str, *forms: str) -> None:
    original = stock(name)

    @aten(name, *forms)
    def function(self: Any, other: Any) -> Any:
        dtype = torch.result_type(self, other)
        a, b = _as(self, dtype), _as(other, dtype)
        if dtype in EXACT_DTYPES or dtype.is_complex:
            return original.by_dtype(dtype, a, b)
        return scalar_code(original, a, b)


_scalar_only("igamma")
_scalar_only("igammac")
_scalar_only("fmod.Tensor", "fmod.Scalar")
_scalar_only("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")


def _through_fp32(name: str) -> None:
    """16-bit dtypes in fp32, whose code is alike everywhere, and rounded once."""
    original = stock(name)

    @aten(name)
    def function(*args: Any, **kwargs: Any) -> Any:
        dtype = args[0].dtype if len(args) == 1 else torch.result_type(*args)
        if dtype not in (torch.bfloat16, torch.float16):
            # A Python number arrives as itself, which the kernel does not take.
            return original(*(_as(a, dtype) for a in args), **kwargs)
        return original(*(_as(a, torch.float32) for a in args), **kwargs).to(dtype)


_through_fp32("special_i0e")
_through_fp32("div.Tensor_mode")
_through_fp32("floor_divide")

# Their mean divides by the number of elements: the gradient is divided first, here.


def _loss_gradient(name: str, target_form: str, weighted: bool) -> None:
    original, torch_form = stock(target_form), stock(name)

    @aten(name)
    def function(grad_output: Tensor, self: Tensor, target: Tensor, *rest: Any) -> Any:
        dtype = self.dtype
        if not dtype.is_floating_point:
            return torch_form.by_dtype(dtype, grad_output, self, target, *rest)
        if weighted:
            rest = (*rest, *(None, 1)[len(rest) :])
        weight, reduction, *options = rest if weighted else (None, *rest)
        if reduction == 1:
            grad_output = grad_output / self.numel()
        tensors = [grad_output, self, target] + ([] if weight is None else [weight])

        def call(*t: Tensor) -> Tensor:
            extra = ((t[3] if len(t) > 3 else None),) if weighted else ()
            y = torch.empty_like(t[1])
            original(*t[:3], *extra, 0, *options, grad_input=y)
            return y

        return scalar_code(call, *(v.to(dtype) for v in tensors))


for _name in ("smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward"):
    _form = "out" if _name.startswith("huber") else "grad_input"
    _loss_gradient(_name, f"{_name}.{_form}", _name.startswith("binary"))


# ---- short formulas that torch fuses in its vector code only -------------------------------------

_ADDR = stock("addr")


@aten("addr")
def addr(self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if vec1.dim() != 1 or vec2.dim() != 1 or not self.dtype.is_floating_point:
        return _ADDR(self, vec1, vec2, beta=beta, alpha=alpha)
    product = torch.outer(vec1, vec2)
    if alpha != 1:
        product = product * alpha
    if beta == 0:  # self may hold NaN: only its shape counts
        return product
    return product + (self if beta == 1 else self * beta)


_LERP, _LERP_SCALAR = stock("lerp.Tensor"), stock("lerp.Scalar")


@aten("lerp.Tensor")
def lerp(self: Tensor, end: Tensor, weight: Tensor) -> Any:
    # With weight 1 the sign of a zero differs between torch's vector and scalar code.
    if not self.dtype.is_floating_point or not self.dtype is end.dtype is weight.dtype:
        return _LERP(self, end, weight)
    return scalar_code(_LERP, self, end, weight)


@aten("lerp.Scalar")
def lerp_scalar(self: Tensor, end: Tensor, weight: Any) -> Any:
    if weight != 1 or not self.dtype.is_floating_point or self.dtype is not end.dtype:
        return _LERP_SCALAR(self, end, weight)
    return scalar_code(lambda a, b: _LERP_SCALAR(a, b, weight), self, end)


@aten("_add_relu.Tensor")
def add_relu(self: Tensor, other: Tensor, *, alpha: Any = 1) -> Any:
    return torch.relu(self + (other if alpha == 1 else other * alpha))
